#include "megatron/train/iteration.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "megatron/kernels/runtime.h"
#include "megatron/plan/steps/batch_plan.h"
#include "megatron/train/data/batches.h"

namespace megatron::train {

std::chrono::milliseconds beat_of(const config::RunConfig& config) {
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(std::clamp(config.parallel.timeout_s * 1000 / 4, 1.0, 1000.0)));
}

checkpoint::Saver::Options saver_options(const config::RunConfig& config, std::function<void()> require_folder) {
  return {.keep = {.last = config.checkpoint.keep_last, .every = config.checkpoint.keep_every},
          .asynchronous = config.checkpoint.async_save,
          .beat = beat_of(config),
          .require_folder = std::move(require_folder)};
}

std::vector<std::vector<std::int64_t>> microbatches(const plan::ResolvedRun& run,
                                                    const parallel::ParallelContext& context, std::int64_t first,
                                                    std::int64_t global_batch, int places) {
  const comm::Group& shares = context.samples();
  return plan::batch_plan(first, global_batch, run.config.train.micro_batch_size, run.grid.sample_shares(),
                          (shares.rank() + places) % shares.size())
      .microbatches;
}

Prefetcher::NextIds coming_microbatches(const plan::ResolvedRun& run, const parallel::ParallelContext& context,
                                        const RunState& state) {
  // Iterations end the run, whatever number of samples those before took: batches may have had another size.
  return
      [&run, &context, state, iteration = state.iteration, consumed = state.consumed_samples,
       of_step = std::vector<std::vector<std::int64_t>>(), m = std::size_t{0}]() mutable -> std::vector<std::int64_t> {
        if (m == of_step.size()) {
          while (iteration < run.config.train.train_iters && skips_batch(run.config.guard, state, iteration + 1)) {
            consumed += run.batch_schedule.global_batch(consumed);
            ++iteration;
          }
          if (iteration >= run.config.train.train_iters) return {};
          const std::int64_t global_batch = run.batch_schedule.global_batch(consumed);
          of_step = microbatches(run, context, consumed, global_batch);
          consumed += global_batch;
          ++iteration;
          m = 0;
        }
        return of_step[m++];
      };
}

namespace {

// What the log says of all ranks. Collective over the world where it says something.
void measure_ranks(const plan::ResolvedRun& run, Engine& engine, const RunState& state, RunLog::Iteration& done) {
  const config::LogConfig& log = run.config.log;
  const comm::Group& world = engine.context.world();
  const kernels::HeldMemory held = kernels::held_memory(engine.context.device());
  if (log.memory_interval > 0 && state.iteration % log.memory_interval == 0)
    done.memory = gathered(world, {static_cast<double>(held.bytes), static_cast<double>(held.peak_bytes)});
  const bool timed = log.timing_level > 0 || log.straggler;
  if (timed && RunLog::prints(run, state, done.result)) done.times = engine.timers.take_step(world);
}

}  // namespace

bool skips_batch(const config::GuardConfig& guard, const RunState& state, std::int64_t iteration) {
  return std::ranges::find(guard.skip_iterations, iteration) != guard.skip_iterations.end() ||
         std::ranges::binary_search(state.skipped_batches, iteration);
}

void skip_batch(const IterationParts& parts, RunState& state) {
  const std::int64_t global_batch = parts.run.batch_schedule.global_batch(state.consumed_samples);
  parts.saver.poll();
  ++state.iteration;
  ++state.skipped_iterations;
  state.consumed_samples += global_batch;
  if (parts.log) parts.log->skipped_batch(state, global_batch);
}

OpenIteration begin_iteration(const IterationParts& parts, const RunState& state, bool stop) {
  const plan::ResolvedRun& run = parts.run;
  Engine& engine = parts.engine;
  OpenIteration open{.first_sample = state.consumed_samples,
                     .global_batch = run.batch_schedule.global_batch(state.consumed_samples)};
  const auto count = microbatches(run, engine.context, open.first_sample, open.global_batch).size();
  StepBatches batches(parts.reader, count, engine.context.device());
  StepCheck check = parts.check;
  check.of_share = [&](int places) -> MicrobatchSource {
    return [&, samples = microbatches(run, engine.context, open.first_sample, open.global_batch, places)](
               std::size_t m) { return on_device(parts.make(samples.at(m)), engine.context.device()); };
  };
  open.step = engine.step.begin(static_cast<int>(count), std::ref(batches), stop, parts.save, check);
  batches.finish();
  open.data_wait_s = parts.reader.take_waited_s();
  return open;
}

void update_iteration(const IterationParts& parts, OpenIteration& open, const RunState& state) {
  open.rates = parts.run.rates_at(state.schedule_samples);
  parts.engine.step.update(open.step, open.rates);
}

IterationEnd end_iteration(const IterationParts& parts, OpenIteration open, RunState& state, std::int64_t tokens,
                           double most_s) {
  const IterationEnd end{.result = parts.engine.step.end(std::move(open.step)),
                         .first_sample = open.first_sample,
                         .global_batch = open.global_batch};
  const StepResult& result = end.result;
  parts.saver.poll();
  ++state.iteration;
  state.consumed_samples += end.global_batch;
  if (result.skipped)
    ++state.skipped_iterations;
  else
    state.schedule_samples += end.global_batch;
  if (!result.skipped || result.spike)
    state.nonfinite_steps = 0;
  else if (!result.harmless)
    ++state.nonfinite_steps;
  parts.engine.timers.add(TimerId::BatchGenerator, open.data_wait_s);
  RunLog::Iteration done{.result = result,
                         .step_s = std::min(open.watch.seconds(), most_s),
                         .data_wait_s = open.data_wait_s,
                         .global_batch = end.global_batch,
                         .rates = open.rates,
                         .next_rates = parts.run.rates_at(state.schedule_samples),
                         .tokens = tokens};
  measure_ranks(parts.run, parts.engine, state, done);
  if (parts.log) parts.log->iteration(state, done);
  return end;
}

RunState behind_open(RunState state, const OpenIteration& open) {
  ++state.iteration;
  state.consumed_samples += open.global_batch;
  return state;
}

IterationEnd run_iteration(const IterationParts& parts, RunState& state, bool stop, std::int64_t tokens) {
  OpenIteration open = begin_iteration(parts, state, stop);
  update_iteration(parts, open, state);
  return end_iteration(parts, std::move(open), state, tokens);
}

void print_times(Engine& engine, const config::LogConfig& options, RunLog* log, const std::vector<TimerId>& timers) {
  if (!engine.timers.measures(timers.front())) return;
  const TimesOverRanks times = engine.timers.take(engine.context.world(), timers);
  const std::string text = timer_text(times, options.timing_option, 1);
  if (log != nullptr && !text.empty()) log->message(text);
}

}  // namespace megatron::train
