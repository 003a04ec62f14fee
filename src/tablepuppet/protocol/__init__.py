"""Every message that may pass between the server and a client: the whitelist.

The server asks, a client answers; nothing else ever crosses. Each request names its answer. Arrays travel as raw
buffers beside a message (codec.py), never as pickles. In the order of a run: `setup` (tables, keys, labels),
`features`, `training`, `prediction`. Algorithms declare updates of their own; all that may pass is in
algorithms/registry.py.
"""

from __future__ import annotations

from typing import Any

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.protocol.base import (
    CloseJob,
    Done,
    Failure,
    FieldDisclosure,
    FieldDisclosures,
    Message,
    Stage,
    disclosures,
)
from tablepuppet.protocol.contract import Agreement, Contract, ProposeContract
from tablepuppet.protocol.features import (
    CategoryEncoder,
    CategoryStatistics,
    Encoded,
    EncodeFeatures,
    Encoder,
    FeatureNames,
    FeatureStatistics,
    FindIds,
    FoundIds,
    IdEncoder,
    IdStatistics,
    NumberEncoder,
    NumberStatistics,
    OpenPart,
    RevealedFeatures,
    RevealFeatures,
    Statistics,
    SumStatistics,
)
from tablepuppet.protocol.groups import (
    Groups,
    GroupSums,
    HoldGroups,
    SendGroups,
    SumGroups,
    Words,
    commitment,
    scales_of,
    words_of,
)
from tablepuppet.protocol.setup import (
    BlindedKeys,
    BlindKeys,
    ColumnInfo,
    CountRows,
    DescribeLabels,
    DescribeTable,
    Keys,
    Kind,
    Labels,
    LabelSummary,
    Merges,
    OpenScan,
    RowCount,
    RowOrder,
    ScanSchema,
    SendKeys,
    SendLabels,
    SendSides,
    SendWeights,
    Sides,
    TableSchema,
    Weights,
)
from tablepuppet.protocol.training import (
    Combined,
    Evaluate,
    Evaluation,
    HoldPart,
    Identifiers,
    Keep,
    Masked,
    Move,
    MultiplyGram,
    Parameters,
    Partial,
    Predictions,
    Release,
    Restore,
    ScoreOwnRows,
    ScoreRows,
    Scores,
    Seal,
    SendFigures,
    SendIdentifiers,
    Started,
    StartPart,
)

REQUESTS = (
    DescribeTable
    | OpenScan
    | ProposeContract
    | CountRows
    | SendGroups
    | SumGroups
    | HoldGroups
    | FindIds
    | SendKeys
    | BlindKeys
    | DescribeLabels
    | SendLabels
    | SendWeights
    | OpenPart
    | SumStatistics
    | EncodeFeatures
    | StartPart[Any]
    | SendFigures
    | MultiplyGram
    | Seal
    | Move
    | Combined
    | Evaluate
    | Keep
    | Restore
    | Release
    | HoldPart
    | RevealFeatures
    | ScoreRows
    | ScoreOwnRows
    | SendIdentifiers
    | SendSides
    | CloseJob
)
RESPONSES = (
    TableSchema
    | ScanSchema
    | Agreement
    | RowCount
    | Groups
    | GroupSums
    | FoundIds
    | Keys
    | BlindedKeys
    | LabelSummary
    | Labels
    | Weights
    | FeatureStatistics
    | FeatureNames
    | Encoded
    | Started
    | Partial
    | Masked
    | Predictions
    | Evaluation
    | Parameters
    | RevealedFeatures
    | Scores
    | Identifiers
    | Sides
    | Done
    | Failure
)

__all__ = [
    "REQUESTS",
    "RESPONSES",
    "Agreement",
    "Array",
    "BlindKeys",
    "BlindedKeys",
    "CategoryEncoder",
    "CategoryStatistics",
    "CloseJob",
    "ColumnInfo",
    "Combined",
    "Contract",
    "CountRows",
    "DescribeLabels",
    "DescribeTable",
    "Done",
    "EncodeFeatures",
    "Encoded",
    "Encoder",
    "Evaluate",
    "Evaluation",
    "Failure",
    "FeatureNames",
    "FeatureStatistics",
    "FieldDisclosure",
    "FieldDisclosures",
    "FindIds",
    "FoundIds",
    "GroupSums",
    "Groups",
    "HoldGroups",
    "HoldPart",
    "IdEncoder",
    "IdStatistics",
    "Identifiers",
    "Keep",
    "Keys",
    "Kind",
    "LabelSummary",
    "Labels",
    "Masked",
    "Merges",
    "Message",
    "Move",
    "MultiplyGram",
    "NumberEncoder",
    "NumberStatistics",
    "OpenPart",
    "OpenScan",
    "Parameters",
    "Partial",
    "Predictions",
    "ProposeContract",
    "Release",
    "Restore",
    "RevealFeatures",
    "RevealedFeatures",
    "RowCount",
    "RowNumbers",
    "RowOrder",
    "ScanSchema",
    "ScoreOwnRows",
    "ScoreRows",
    "Scores",
    "Seal",
    "SendFigures",
    "SendGroups",
    "SendIdentifiers",
    "SendKeys",
    "SendLabels",
    "SendSides",
    "SendWeights",
    "Sides",
    "Stage",
    "StartPart",
    "Started",
    "Statistics",
    "SumGroups",
    "SumStatistics",
    "TableSchema",
    "Weights",
    "Words",
    "commitment",
    "disclosures",
    "scales_of",
    "words_of",
]
