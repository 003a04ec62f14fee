"""BoundQuery + Job → one Contract per owner, proposed before anything is read (docs/contracts.md)."""
