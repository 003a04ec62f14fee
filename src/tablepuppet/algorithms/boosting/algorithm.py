"""boosting, declared."""

from tablepuppet.algorithms.algorithm import Algorithm
from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.boosting.traffic import tree_round_range, tree_rounds, tree_seconds
from tablepuppet.algorithms.shape import BlockShape, PartShape, RoundTraffic, Shape
from tablepuppet.models.spec import ModelSpec


class BoostingAlgorithm(Algorithm[Boosting]):
    """Trees over the join, in rounds of their own (engine.py)."""

    options = Boosting
    summary = "boosted trees: those of a histogram booster on the joined table, in two rounds a tree or fewer"
    own_model = "boosted"
    epoch = "tree"
    epochs = 1
    remedy = "use a smaller learning_rate, or bits = 32"

    def refusal(self, options: Boosting, spec: ModelSpec) -> str | None:
        return None if spec.kind == "boosted" else 'algorithm="boosting" grows trees; use it with model="boosted"'

    def title(self, options: Boosting) -> str:
        trees = "1 tree" if options.trees == 1 else f"{options.trees:,} trees"
        size = f"depth {options.levels}" if options.leaf_limit is None else f"{options.leaf_limit:,} leaves"
        kind = "a forest of" if options.forest else "at most"
        return f"{kind} {trees} of {size}, {'random splits' if options.is_random else 'exact splits'}"

    def run_epochs(self, options: Boosting, usual: int) -> int:
        return options.trees

    def can_go_on(self, options: Boosting) -> bool:
        return not options.forest

    def can_stop_early(self, options: Boosting) -> bool:
        return not options.forest

    def traffic(self, shape: Shape, options: Boosting, epoch: int, batch_size: int | None) -> list[RoundTraffic]:
        """The rounds of one tree; `epoch` is its number."""
        return tree_rounds(shape, options, epoch)

    def round_range(self, shape: Shape, options: Boosting, estimate: int) -> tuple[int, int]:
        return tree_round_range(shape, options, estimate)

    def cpu(self, shape: Shape, options: Boosting, epoch: int, batches: int = 1) -> float:
        return tree_seconds(shape, options, epoch)

    def server_memory(self, shape: Shape, options: Boosting) -> int:
        """Scores, the order of rows and room to part them, derivatives, rows by block; then the bins that are known."""
        per_row = 8 * shape.outputs + 4 + shape.outputs * (8 + 8) + 4 * len(shape.blocks)
        return shape.joined * per_row + sum(block.rows * block.width for block in shape.blocks)

    def client_memory(self, shape: Shape, options: Boosting, block: BlockShape, part: PartShape) -> float:
        return (part.rows + part.test_rows) * block.width

    def why_not_private(self, options: Boosting) -> str | None:
        if options.is_random:
            return None
        return 'splits that are searched tell of every row, and have no private form; draw them with splits="random"'

    def noisy_sums(self, options: Boosting) -> int | None:
        """Leaves are sums; drawn splits read no row."""
        return options.trees if options.is_random and options.subsample == 1.0 else None


ALGORITHM = BoostingAlgorithm()
