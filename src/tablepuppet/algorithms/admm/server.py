"""ADMM pushed down to tables (RFL-ADMM-V, RFL-ADMM), in its sharing form.

    server   λ⁺ = ℓ'(u),  u = argmin ℓ(u) + ρ/2 ‖u − (a + b + λ/ρ)‖²      z-step and dual step in one
             c = 2λ⁺ − λ  (= λ⁺ + ρ(a − z)),  Y_i = collapse_i(c) − Mρ G_i∘h_i
    client   θ_i = argmin βR(θ) + (1/N) Σ_k [Y_kᵀ f(θ) + ½ Mρ G_k ‖f(θ)‖²]

`variant="published"` has ρ in place of Mρ, as the paper prints it; it may diverge. The intercept b
lies with the server: that of the reported model or, where none is searched for, minimised over
jointly with z. A block with several clients solves its θ-step by consensus rounds
(`union="consensus"`) or from summed second moments (`union="exact"`). docs/algorithms.md derives all
of it. Here is the server's half; the client's is in client.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tablepuppet.algorithms.admm.client import Admm, AdmmFigures, AdmmUpdate
from tablepuppet.algorithms.base import BlockAnswer, BlockUpdate, Problem, Server, squared_norm
from tablepuppet.algorithms.numerics.linear_systems import Spectrum
from tablepuppet.algorithms.numerics.search import best_intercept
from tablepuppet.algorithms.numerics.subspace import Tracker
from tablepuppet.arrays import Array
from tablepuppet.models.losses import Loss

_RESTART = 3  # rounds between restarts from the reported model
_INTERCEPT_STEPS = 8
_NORMS = ("primal", "dual", "scores", "z", "lambda")  # sums for ADMM's residuals


def opening_step(shard: Any, *, intercept: Array) -> tuple[Sequence[Array], dict[str, Any]]:
    """u = a + b: where ADMM would stand if these predictions were its last."""
    np.add(shard.scores, intercept, out=shard.state["u"], casting="same_kind")
    return (), {}


def _centre(shard: Any, loss: Loss, intercept: Array, before: Array, rho: float, relax: float) -> tuple[Array, Array]:
    """u of the last round, and where the proximal map is taken: â + b + λ/ρ with λ = ℓ'(u), z = u − b.

    If the loss has kinks, u does not determine λ, which is then kept too.
    """
    last = shard.state["u"].astype(np.float64, copy=False)
    centre = loss.gradient(last, shard.labels) if "dual" not in shard.state else shard.state["dual"].copy()
    centre /= rho
    centre += relax * shard.scores
    centre += (1.0 - relax) * last
    centre += intercept - (1.0 - relax) * before
    return last, centre


def intercept_step(
    shard: Any, *, loss: Loss, intercept: Array, before: Array, rho: float, relax: float
) -> tuple[Sequence[Array], dict[str, Any]]:
    """Slope and curvature in b of min_z Σ ℓ(z + b) − λz + ρ/2 (â − z)²."""
    last, centre = _centre(shard, loss, intercept, before, rho, relax)
    u = loss.proximal(centre, rho, shard.labels, last)
    if "dual" in shard.state:
        return (), {"slope": rho * (centre - u).sum(axis=0)}
    curvature = loss.curvature(u, shard.labels)
    return (), {
        "slope": loss.gradient(u, shard.labels).sum(axis=0),
        "curvature": (rho * curvature / (rho + curvature)).sum(axis=0),
    }


def join_step(
    shard: Any, *, loss: Loss, intercept: Array, before: Array, rho: float, relax: float
) -> tuple[Sequence[Array], dict[str, Any]]:
    """The z-step and the dual step; the signal is c = λ⁺ + ρ(a − z⁺), and z = u − b."""
    last, centre = _centre(shard, loss, intercept, before, rho, relax)
    u = loss.proximal(centre, rho, shard.labels, last)
    signal = rho * (centre - u) if "dual" in shard.state else loss.gradient(u, shard.labels)
    z = u - intercept
    gap = shard.scores - z
    vectors = [gap, rho * (u - last + (before - intercept)), shard.scores, z, signal]
    sums = {name: squared_norm(vector) for name, vector in zip(_NORMS, vectors, strict=True)}
    shard.state["u"][...] = u
    if "dual" in shard.state:
        shard.state["dual"][...] = signal
    gap *= rho
    signal += gap
    return (signal,), sums


@dataclass
class AdmmServer(Server):
    """The server's half: dual variables over joined rows, ρ, residuals.

    Iterates zigzag around the optimum. The reported model is the best combination of the last ones. The server finds it
    alone (numerics/subspace.py), and it never gets worse. Every few rounds ADMM itself restarts from it.
    """

    problem: Problem
    options: Admm

    def __post_init__(self) -> None:
        loss = self.problem.loss
        self.rho = self.options.start_rho(self.problem.is_linear) * loss.typical_curvature
        self._averages = self.options.averages and self.problem.is_linear
        self._iterates: list[Array] = []  # h of ADMM's own θ
        self._shift: Array = np.zeros(loss.outputs)  # and its intercept b
        self._before: Array = self._shift  # b of the last round
        self._tracker = Tracker(self.problem, [self.options.memory] * self.problem.blocks)
        self._scales: list[float] = []
        self._unions: dict[int, Spectrum] = {}
        self._figures: dict[str, float] = {}
        self._age = 0  # rounds since the last restart
        # The reported model comes from exact predictions; single precision suffices for the state that only steers it.
        dtype = np.float32 if self._averages else np.float64
        self.problem.joined.allocate("u", loss.outputs, dtype)
        self._writes: tuple[str, ...] = ("u",) if loss.is_smooth else ("u", "dual")
        if not loss.is_smooth:
            self.problem.joined.allocate("dual", loss.outputs)
        self._bend = np.full(loss.outputs, np.nan)  # of a loss with kinks: how the slope in b rises

    def _report(self) -> None:
        """Where the reported model stands."""
        self.intercept, self.predictions, self.tally = self._shift, self._iterates, None
        if self._averages:
            self.intercept, self.predictions, self.tally = self._tracker.model

    @property
    def _factor(self) -> float:
        """The factor of G‖h‖²/2 in the θ-step: Mρ, or ρ as published."""
        return self.rho * (self.problem.blocks if self.options.variant == "sharing" else 1)

    def begin(self, predictions: list[Array], figures: Sequence[AdmmFigures]) -> None:
        self._scales = [f.curvature or 1.0 for f in figures]  # where no row joins, any positive ρ_u will do
        if self._averages:
            self._tracker.begin(predictions, [False] * self.problem.blocks)
        elif self.problem.has_intercept and not self.problem.is_private:
            self._tracker.intercept = best_intercept(self.problem, predictions)
        elif self.problem.has_intercept or self.problem.is_centred:  # from labels alone
            self._tracker.intercept = best_intercept(self.problem, self.problem.zeros())
        self._tracker.predictions = predictions
        self._restart()
        self._report()

    def join_step(self) -> list[BlockUpdate]:
        problem, h = self.problem, self._iterates
        self._age += 1
        given: dict[str, Any] = {"loss": problem.loss, "rho": self.rho}
        given |= {"before": self._before, "relax": self.options.relax}
        # Under privacy the best constant for the labels stays.
        is_free = problem.has_intercept and not problem.is_private
        if is_free and self._averages:
            self._shift = self._tracker.intercept  # the best one for the reported model, which ADMM follows
        elif is_free and not problem.loss.is_smooth:
            self._shift = self._between_kinks(h, given)
        elif is_free:
            self._shift = self._by_newton(h, given)
        given |= {"intercept": self._shift, "writes": self._writes, "own": self._factor}
        done = problem.joined.run(join_step, h, signals=1, **given)
        self._before, sums = self._shift, done.sums
        # Residuals, relative to the size of the compared values (Boyd et al., 3.3.1).
        primal = np.sqrt(sums["primal"] / max(sums["scores"], sums["z"], 1e-300))
        dual = np.sqrt(sums["dual"] / max(sums["lambda"], 1e-300))
        self._figures = {"primal_residual": float(primal), "dual_residual": float(dual), "rho": self.rho}
        updates = []
        for i, coefficients in enumerate(self._tracker.take_pending()):
            common = {
                "factor": self._factor,
                "union_rho": self._factor * self._scales[i] / problem.clients[i],
                "coefficients": coefficients,
            }
            updates.append(BlockUpdate(AdmmUpdate, {"signal": done.signals[0][i]}, common))
        return updates

    def _by_newton(self, h: list[Array], given: dict[str, Any]) -> Array:
        """The best b for this round's z-step."""
        shift, problem = self._shift, self.problem
        for _ in range(_INTERCEPT_STEPS):
            sums = problem.joined.run(intercept_step, h, intercept=shift, **given).sums
            move = sums["slope"] / np.maximum(sums["curvature"], 1e-300)
            shift = shift - move
            # Newton in one variable: the error after a step is the step's square
            if problem.loss.is_quadratic or float(np.abs(move).max()) <= 1e-3:
                break
        return shift

    def _between_kinks(self, h: list[Array], given: dict[str, Any]) -> Array:
        """The same where the slope in b rises piece by piece, by at most ρN; secants estimate its curvature."""
        shift, most = self._shift, self.rho * self.problem.joined.rows
        last: tuple[Array, Array] | None = None
        for _ in range(_INTERCEPT_STEPS):
            slope = self.problem.joined.run(intercept_step, h, intercept=shift, **given).sums["slope"]
            if last is not None:
                moved = shift - last[0]
                rise = np.divide(slope - last[1], moved, out=np.zeros_like(slope), where=moved != 0)
                self._bend = np.where(rise > 0, rise, self._bend)
            self._bend = np.clip(np.where(np.isnan(self._bend), most, self._bend), 1e-3 * most, most)
            if float(np.abs(slope).max()) <= 1e-9 * most * float(np.abs(shift).max() + 1.0):
                break
            last = shift, slope
            shift = shift - slope / self._bend
        return shift

    def union_step(self, block: int, total: list[Array]) -> list[Array]:
        ridge = self.problem.ridges[block]
        if self.options.union == "exact":  # from Σ T_qᵀ diag(G_q) T_q once, and Σ T_qᵀ Y_q each round
            if len(total) > 1:
                self._unions[block] = Spectrum.of(total[1])
            return [-self._unions[block].solve(self._factor, self.problem.joined.rows * ridge, total[0])]
        if self.problem.is_private:
            return total  # the parts' shares add up to one
        # w = argmin βR(w) + Qρ_u/2 ‖w − mean(θ_q + u_q)‖², from the sum of θ_q + u_q
        clients = self.problem.clients[block]
        union_rho = self._factor * self._scales[block] / clients
        return [union_rho * total[0] / (ridge + clients * union_rho)]

    def absorb(self, answers: Sequence[BlockAnswer]) -> None:
        self._iterates = [a.values for a in answers]
        if self._averages:
            # h of iterate − reported model came; their difference taken here would be mostly rounding
            self._iterates = [h + a.values for h, a in zip(self._tracker.predictions, answers, strict=True)]
            found = self._tracker.search(answers)
            if self._age == 1:  # the first step from a restart follows the gradient
                self._figures["decrement"] = abs(found.decrement / (found.value or 1.0))  # F of equal labels is 0
        self._adapt()
        if self._averages and self._age == _RESTART:
            self._restart()
        self._report()

    def _restart(self) -> None:
        """Restarts ADMM from the reported model: λ = ℓ'(a), z = a."""
        self._iterates, self._shift = list(self._tracker.predictions), self._tracker.intercept
        self.problem.joined.run(opening_step, self._iterates, writes=("u",), intercept=self._shift)
        self._before = self._shift
        self._age = 0

    def _adapt(self) -> None:
        """Residual balancing (Boyd et al., 3.4.1)."""
        if not (self.options.adapt and self.problem.is_linear) or self._age == 1:
            return
        primal, dual = self._figures["primal_residual"], self._figures["dual_residual"]
        if primal > 10 * dual:
            self.rho *= 2
        elif dual > 10 * primal:
            self.rho /= 2

    def finish(self) -> None:
        self._tracker.finish()

    def settle(self) -> list[dict[str, Any] | None]:
        return self._tracker.settle()

    def is_converged(self) -> bool:
        """Near the optimum both residuals vanish; after a restart they do anyway, but not the decrement."""
        if self._averages:
            return self._age == 1 and self._figures["decrement"] <= self.options.tolerance
        # The first round follows from λ = ℓ'(a), z = a, and has no residual to speak of.
        residual = max(self._figures["primal_residual"], self._figures["dual_residual"])
        return self._age > 1 and residual <= self.options.tolerance

    def residuals(self) -> dict[str, float]:
        return self._figures
