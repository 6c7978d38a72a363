"""The training loop: steps, epochs, ranks and checkpoints. The task defines what is learned."""

from __future__ import annotations

import logging
import math
import signal
import time
from typing import Any, NoReturn

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from flare.data.batching import BatchPlan
from flare.inference.surrogate import find_checkpoint
from flare.models.flare import recompute_blocks, split_points
from flare.train.checkpoint import Position, RunState, collect, load_checkpoint, save_checkpoint, saved_step
from flare.train.config import TrainConfig
from flare.train.distributed.rank_failure import is_rank_failure, rank_failure
from flare.train.distributed.ranks import Ranks
from flare.train.distributed.shards import whole
from flare.train.ema import WeightAverage
from flare.train.optimizers import build_optimizer
from flare.train.run_folder import RunFolder
from flare.train.schedule import decay_start, first_beta, learning_rate
from flare.train.signals import Interrupted, SignalGuard
from flare.train.tasks import Task
from flare.utils.environment import gigabytes, peak_memory_mb
from flare.utils.errors import CheckpointError, RankFailure, TrainingDiverged
from flare.utils.progress import progress

logger = logging.getLogger(__name__)


class Trainer:
    """Trainer of one run on one rank.

    Args:
        config: All settings.
        task: What is learned.
        run: Folder for metrics and checkpoints.
        fabric: Launched Fabric: device, precision and strategy.
        ranks: Place of this rank.
        resumed: Whether `resume()` follows, so that normalizers need not be fitted.
    """

    def __init__(
        self, config: TrainConfig, task: Task, run: RunFolder, fabric: Fabric, ranks: Ranks, *, resumed: bool = False
    ) -> None:
        self.config, self.task, self.run, self.fabric, self.ranks = config, task, run, fabric, ranks
        task.ranks = ranks
        torch.manual_seed(config.seed)
        self.surrogate = task.surrogate(config.model, fitted=not (resumed and run.has_checkpoint("last")))
        if config.recompute:
            recompute_blocks(self.surrogate.network)
        if config.compile:
            self.surrogate.network.compile()  # in place: names of weights stay the same
        if ranks.group is not None:
            split_points(self.surrogate.network, ranks.group)
        module = fabric.setup_module(self.surrogate)
        # Built after the weights are on their device. Checkpoints need the optimizer without Fabric's wrapper.
        self.optimizer = build_optimizer(self.surrogate, config.optim, fused=config.precision != "16")
        self.model, self.stepper = module, fabric.setup_optimizers(self.optimizer)
        self.ema = WeightAverage(self.surrogate, config.optim.ema) if config.optim.ema else None
        self.plan = BatchPlan(
            task.train,
            config.data.batch_size,
            parts=config.optim.accumulate,
            rank=ranks.samples.index,
            ranks=ranks.samples.count,
            seed=config.seed,
            lengths=task.lengths,
        )
        self.total_steps = config.steps or self.plan.steps * config.epochs
        # A checkpoint at the end of the stable phase of wsd allows to extend the run from there.
        self._stable_until = decay_start(self.total_steps, config.optim) if config.optim.schedule == "wsd" else None
        self.position = Position(data_fingerprint=task.dataset.fingerprint)
        self._signal, self._agreed_signal, self._save_due = SignalGuard(), 0, False
        self._begin = self._saved_at = time.monotonic()
        self._cpu_begin = time.process_time()
        self._recent: list[float] = []

    # -- the loop -----------------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Train to the end of the run, from the present position.

        Raises:
            Interrupted: A signal arrived; the run is saved.
            TrainingDiverged: The loss or gradient is non-finite, or the loss is far above its lowest value.
            RankFailure: Another rank failed.
        """
        self._begin = time.monotonic() - self.position.seconds
        self._cpu_begin = time.process_time() - self.position.cpu_seconds
        self._saved_at = time.monotonic()
        quiet = not self.fabric.is_global_zero
        with (
            SignalGuard(quiet=quiet) as self._signal,
            progress("training", self.total_steps, done=self.position.step, unit="steps", quiet=quiet) as update,
        ):
            try:
                while not self.position.finished:
                    self._epoch(update)
                self._agree(torch.zeros((), device=self.fabric.device))
            except RuntimeError as error:
                if not is_rank_failure(error):
                    raise
                self._signal.hold()  # the launcher now ends the other ranks; first this one saves and reports
                raise self._save_after_failure(error) from error
        self.run.close()
        if self._agreed_signal:  # it arrived during the last evaluation; resuming does the rest
            raise Interrupted(self._agreed_signal, str(self.run.path))

    def _epoch(self, update: Any) -> None:
        self.model.train()
        self.plan.begin(self.position.epoch, self.position.step_in_epoch)
        epochs = self.total_steps / self.plan.steps
        micro_batches = iter(self.task.batches(self.plan, epochs, pin=self.fabric.device.type == "cuda"))
        left = self.total_steps - self.position.step
        for _ in range(min(left, self.plan.steps - self.position.step_in_epoch)):
            if self.position.step == self._stable_until:
                self.save("stable")
            started = time.monotonic()
            measured = self._step([next(micro_batches) for _ in range(self.plan.parts)])
            self.position.step += 1
            self.position.step_in_epoch += 1
            self._log(measured, time.monotonic() - started)
            update(text=f"loss {self.position.smooth_loss:.4f}  {gigabytes(peak_memory_mb()):.1f} GB")
            self._save_if_asked()
        finished, epoch = self.position.step == self.total_steps, self.position.epoch + 1
        if finished or epoch % self.config.evaluate_every == 0:
            self._evaluate(epoch)
        # Set after the evaluation, so that an interrupted evaluation is repeated when the run is resumed.
        self.position.finished = finished
        if self.position.step_in_epoch == self.plan.steps:  # `steps` may end within an epoch
            self.position.epoch, self.position.step_in_epoch = epoch, 0
        if finished or epoch % self.config.checkpoint_every == 0:
            self.save("last")

    def _step(self, micro_batches: list[Any]) -> dict[str, Any]:
        """Do one optimizer step; return the mean loss, the gradient norm and the number of points of all ranks."""
        optim, position = self.config.optim, self.position
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(position.step, self.total_steps, optim, group["peak_lr"])
            group["betas"] = (first_beta(position.step, self.total_steps, optim), group["betas"][1])
        total = torch.zeros((), device=self.fabric.device)
        for i, batch in enumerate(micro_batches):
            # Ranks exchange gradients once per step, at the last micro-batch.
            with self.fabric.no_backward_sync(self.model, enabled=i + 1 < len(micro_batches)):
                loss = self.task.loss(self.model, batch.to(self.fabric.device)) / len(micro_batches)
                # Ranks average their gradients, but those of ranks that share a sample must be summed.
                self.fabric.backward(loss * self.ranks.points.count)
            total += loss.detach()
        mean_loss, points = self._agree(total, sum(batch.points for batch in micro_batches))
        self._watch_loss(mean_loss, micro_batches)
        clip: Any = {"max_norm": optim.clip or math.inf, "error_if_nonfinite": False}
        norm = float(whole(self.fabric.clip_gradients(self.model, self.stepper, **clip)))
        if self._scaler is None and not math.isfinite(norm):  # a loss scaler skips such steps by itself
            self._stop(f"the gradient norm is {norm}", micro_batches)
        self.stepper.step()
        self.stepper.zero_grad()
        if self.ema is not None:
            self.ema.update(self.surrogate)
        self.task.after_step(self.surrogate, position.step + 1, self.config.seed)
        return {"loss": mean_loss, "grad_norm": norm, "points": points}

    def _agree(self, loss: Tensor, points: int = 0) -> tuple[float, int]:
        """Return the mean loss and the points of all ranks, and share signals and due checkpoints between ranks.

        Ranks save together, so they act on what was exchanged here, never on a signal that arrived later.
        """
        self._agreed_signal = self._signal.number
        self._save_due = time.monotonic() - self._saved_at > 60 * self.config.checkpoint_minutes
        if self.fabric.world_size == 1:
            return float(loss), points
        own = np.array([float(loss), self._agreed_signal, self._save_due, points], dtype=np.float64)
        total, signals, saves, all_points = self.ranks.add_up(own)
        self._agreed_signal = self._agreed_signal or (int(signal.SIGTERM) if signals else 0)
        self._save_due = bool(saves)
        return float(total) / self.fabric.world_size, int(all_points)

    def _watch_loss(self, loss: float, micro_batches: list[Any]) -> None:
        """Update the smoothed loss; stop if it is non-finite or far above its lowest value."""
        if not math.isfinite(loss):
            self._stop(f"the loss is {loss}", micro_batches)
        position = self.position
        smooth = loss if position.smooth_loss is None else 0.95 * position.smooth_loss + 0.05 * loss
        lowest = smooth if position.lowest_loss is None else min(smooth, position.lowest_loss)
        reference = max(lowest, self.task.trivial_loss)
        if smooth > self.config.diverged * reference:
            self._stop(f"the loss rose to {smooth:.3g}, {smooth / reference:.0f} times its lowest value", micro_batches)
        position.smooth_loss, position.lowest_loss = smooth, lowest

    def _stop(self, reason: str, micro_batches: list[Any]) -> NoReturn:
        samples = [i for batch in micro_batches for i in batch.indices]
        raise TrainingDiverged(
            f"training stopped at step {self.position.step} (epoch {self.position.epoch}): {reason}, on samples "
            f"{samples} of {self.task.dataset.path}. Try a lower optim.lr or optim.clip, or check the data: "
            f"flare data check {self.task.dataset.path}"
        )

    def _save_after_failure(self, error: RuntimeError) -> RankFailure:
        """Save the run after another rank failed, and return the error to raise.

        All ranks end a step with the same state, except for random states and shards. The surviving ranks cannot
        communicate any more, so each one saves under a lock unless the step is saved already.
        """
        if self.position.step and not self.config.shard:
            with self.run.saving():
                if (saved_step(self.run) or 0) < self.position.step:
                    state = collect(self.surrogate, self.optimizer, self.ema)
                    self._write("last", state, {name: random[None] for name, random in self._own_random().items()})
        self.run.close()
        when = f"in step {self.position.step}"
        return rank_failure(error, self.fabric.world_size, when, self.run, shards=self.config.shard)

    def profile(self, seconds: float = 10.0) -> tuple[float, float]:
        """Measure an optimizer step and an evaluation of the watched split. The trainer is not usable afterwards.

        Args:
            seconds: Time to spend on steps; at least three are done.

        Returns:
            Median seconds of a step, and seconds of an evaluation; the same on all ranks.
        """
        self.model.train()
        self.plan.begin(0, 0)
        micro_batches = iter(self.task.batches(self.plan, 0))  # 0 epochs: the largest subsample
        times: list[float] = []
        while len(times) < self.plan.steps and (len(times) < 3 or sum(times) < seconds):
            started = time.monotonic()
            self._step([next(micro_batches) for _ in range(self.plan.parts)])
            times.append(time.monotonic() - started)
        watched = next(iter(self.task.evaluated.values()))
        few = watched[: self.config.data.eval_batch_size * self.ranks.samples.count]
        self.model.eval()
        started = time.monotonic()
        self.task.errors(self.model, self.fabric.device, few)
        evaluation = (time.monotonic() - started) * len(watched) / len(few)
        own = np.array([np.median(times[1:] or times), evaluation])
        step, evaluation = (self.ranks.add_up(own) / self.ranks.all.count).tolist()
        return step, evaluation

    # -- evaluation and log -------------------------------------------------------------------------------------------

    def errors_of(self, split: str) -> np.ndarray:
        """Evaluate the present weights on a split; each rank evaluates its share of the samples.

        Returns:
            Errors of the task, shape (samples, kinds); the same on all ranks.
        """
        self.model.eval()
        ranks, indices = self.ranks, self.task.evaluated[split]
        # All ranks evaluate the same number of samples, some of them twice: ranks that share weights must go through
        # the network together.
        most = math.ceil(len(indices) / ranks.samples.count)
        mine = ranks.samples.index + ranks.samples.count * np.arange(most)
        found = self.task.errors(self.model, self.fabric.device, indices[mine % len(indices)])
        errors = np.zeros((len(indices), found.shape[1]))
        if ranks.points.index == 0:  # the other ranks of the group have the same errors
            new = mine < len(indices)
            errors[mine[new]] = found[new]
        return ranks.add_up(errors)

    def scores(self, errors: np.ndarray, split: str) -> dict[str, float]:
        """Return the metrics of a split, and those of the averaged weights as `<name>_ema` if there are any."""
        scores = self.task.scores(errors)
        if self.ema is not None:
            with self.ema.swapped_in(self.surrogate):
                scores |= {f"{name}_ema": score for name, score in self.task.scores(self.errors_of(split)).items()}
        return scores

    def _evaluate(self, epoch: int) -> None:
        """Evaluate after an epoch, counted from 1; log the metrics and save the best weights."""
        split = next(iter(self.task.evaluated))
        errors = self.errors_of(split)
        record: dict[str, Any] = {"kind": "evaluate", "step": self.position.step, "epoch": epoch}
        record |= {"split": split, **self.scores(errors, split), **self._elapsed()}
        if self.fabric.is_global_zero:
            self.run.log(record)
            scores = ", ".join(f"{name} {score:.4f}" for name, score in self.task.scores(errors).items())
            logger.info(f"epoch {epoch}: {split} {scores}")
        error, best = float(errors.mean()), self.position.best_error
        if math.isfinite(error) and (best is None or error < best):
            self.save("best")
            self.position.best_error = error

    def _log(self, measured: dict[str, Any], seconds: float) -> None:
        position = self.position
        self._recent.append(measured["loss"])
        if position.step % self.config.log_every and position.step != self.total_steps:
            return
        record = {
            "kind": "train",
            "step": position.step,
            "epoch": position.epoch,
            "loss": float(np.mean(self._recent)),
            "lr": float(self.optimizer.param_groups[0]["lr"]),
            "grad_norm": measured["grad_norm"],
            "points": measured["points"],
            "seconds": time.monotonic() - self._begin,
            "samples_per_second": self.config.data.batch_size / max(seconds, 1e-9),
            "memory_mb": peak_memory_mb(),
        }
        self._recent.clear()
        if self.fabric.is_global_zero:
            self.run.log(record)

    # -- saving and resuming -------------------------------------------------------------------------------------------

    def save(self, name: str) -> None:
        """Write a checkpoint. Every rank must call this; the first one writes."""
        random_states = self._random_states()
        state = collect(self.surrogate, self.optimizer, self.ema)
        if self.fabric.is_global_zero:
            with self.run.saving():
                self._write(name, state, random_states)
        self.fabric.barrier()
        self._saved_at = time.monotonic()

    def _write(self, name: str, state: RunState, random_states: dict[str, Tensor]) -> None:
        vars(self.position).update(self._elapsed())
        self.position.loss_scaler = self._scaler.state_dict() if self._scaler is not None else None
        folder = self.run.checkpoints / name
        save_checkpoint(folder, self.surrogate, state, random_states, self.position)

    def _elapsed(self) -> dict[str, float]:
        """Return the training time over all sessions."""
        cpu_seconds = time.process_time() - self._cpu_begin
        return {"seconds": time.monotonic() - self._begin, "cpu_seconds": cpu_seconds}

    def resume(self) -> None:
        """Continue from the last checkpoint of the run, bit for bit as if it had not stopped (on a CPU)."""
        if self.run.has_checkpoint("last"):
            folder = find_checkpoint(self.run.path)
            self.position, random_states = load_checkpoint(folder, self.surrogate, self.optimizer, self.ema)
            if self.position.data_fingerprint != self.task.dataset.fingerprint:
                raise CheckpointError(
                    f"{folder} was trained on other data: {self.task.dataset.path} has another fingerprint. Restore "
                    "the dataset, or start a new run"
                )
            self.position.finished &= self.position.step == self.total_steps  # an extended run continues
            self._restore_random(random_states)
        if self._scaler is not None and self.position.loss_scaler is not None:
            self._scaler.load_state_dict(self.position.loss_scaler)
        if self.fabric.is_global_zero:
            self.run.forget_after(self.position.step, evaluated=self.position.step_in_epoch == 0)
        self.fabric.barrier()

    def _random_states(self) -> dict[str, Tensor]:
        """Collect the random states of every rank, shape [ranks, bytes]."""
        place, states = self.ranks.all, {}
        for name, state in self._own_random().items():
            table = np.zeros((place.count, len(state)), np.uint8)
            table[place.index] = state.numpy()
            states[name] = torch.from_numpy(self.ranks.add_up(table))
        return states

    def _own_random(self) -> dict[str, Tensor]:
        on_gpu = self.fabric.device.type == "cuda"
        cuda = {"random/cuda": torch.cuda.get_rng_state(self.fabric.device)} if on_gpu else {}
        return {"random/cpu": torch.get_rng_state(), **cuda}

    def _restore_random(self, states: dict[str, Tensor]) -> None:
        rank, ranks = self.fabric.global_rank, self.fabric.world_size
        if len(states["random/cpu"]) != ranks:
            logger.info(f"the run resumes with {ranks} rank(s), not {len(states['random/cpu'])}: new random states")
            fresh = np.random.SeedSequence([self.config.seed, self.position.step, rank])
            torch.manual_seed(int(fresh.generate_state(1)[0]))
            return
        torch.set_rng_state(states["random/cpu"][rank])
        if "random/cuda" in states and self.fabric.device.type == "cuda":
            torch.cuda.set_rng_state(states["random/cuda"][rank], self.fabric.device)

    def _save_if_asked(self) -> None:
        if self._agreed_signal or self._save_due:
            self.save("last")
        if self._agreed_signal:
            self.run.close()
            raise Interrupted(self._agreed_signal, str(self.run.path))

    @property
    def _scaler(self) -> Any:
        """Loss scaler of float16 training; None in other precisions."""
        return getattr(self.fabric.strategy.precision, "scaler", None)
