#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "app/bench/bench.h"
#include "app/bench/profile.h"
#include "app/bench/step_options.h"
#include "app/bench/timed_steps.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/machine/cores.h"
#include "megatron/base/timer.h"
#include "megatron/config/options.h"
#include "megatron/config/value.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/runtime.h"
#include "megatron/parallel/output_layer.h"
#include "megatron/plan/cost/counts.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/pipeline_plan.h"
#include "megatron/recipe/resolve.h"
#include "megatron/run/memory_check.h"
#include "megatron/run/ranks.h"
#include "megatron/train/engine.h"
#include "megatron/train/log/run_log.h"

namespace megatron::app {
TimedSteps timed_steps(train::Engine& engine, const plan::ResolvedRun& run, std::int64_t warmup, std::int64_t steps,
                       const std::function<void(std::int64_t)>& after) {
  TimedSteps timed;
  // As in a run, a GPU is given the passes of a step before the host learns of the one before.
  const bool ahead = !engine.context.device().is_cpu() && engine.step.may_stay_open();
  std::optional<train::TrainStep::Open> open;
  std::int64_t ended = 0;
  Stopwatch watch;
  const auto end_step = [&] {
    const train::StepResult result = engine.step.end(*std::exchange(open, std::nullopt));
    if (!ahead) finish(engine.parameters.gradients());  // the parameters may be gathered while the next step runs
    const double step_s = watch.seconds();
    watch.restart();
    timed.loss = result.loss;
    if (after) after(ended);
    if (ended++ < warmup) return;
    timed.step_s.push_back(step_s);
    timed.forward_s.push_back(result.times.forward_s);
    timed.backward_s.push_back(result.times.backward_s);
    timed.reduce_s.push_back(result.times.reduce_s);
    timed.optimizer_s.push_back(result.times.optimizer_s);
  };
  for (std::int64_t i = 0; i < warmup + steps; ++i) {
    if (!ahead) watch.restart();
    train::TrainStep::Open now = train::begin_synthetic_step(engine, run, i);
    if (open) end_step();
    engine.step.update(now, 1e-4);
    open.emplace(std::move(now));
    if (!ahead) end_step();
  }
  if (open) end_step();
  finish(engine.parameters.gradients());
  return timed;
}

namespace {

using Json = nlohmann::ordered_json;

// Since this process was started, the loading of libraries included: field 22 of /proc/self/stat against the uptime.
double seconds_since_start() {
  std::ifstream stat_file("/proc/self/stat"), uptime_file("/proc/uptime");
  const std::string stat((std::istreambuf_iterator<char>(stat_file)), {});
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));  // the name in parentheses may hold spaces
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  double uptime_s = 0;
  uptime_file >> uptime_s;
  return uptime_s - std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// Minor page faults of this process so far.
std::int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

struct Measured {
  double startup_s = 0;
  TimedSteps timed;
  std::vector<double> loss_layer_s;
  std::int64_t peak_memory_bytes = 0;
  std::int64_t peak_tensor_bytes = 0;  // of the tensors of all ranks of this process alone
  double page_faults_per_step = 0;     // minor ones of this process
  double bytes_per_parameter = 0;      // of parameters, frozen too, gradients, masters and moments on the first rank
  double planned_bytes_per_parameter = 0;
  std::string timeline;  // what --trace says
  StepProfile profile;   // of --profile
};

// Output layer and loss alone, which the step's forward pass contains together with their gradients. Collective over
// tp.
std::vector<double> time_loss_layer(const plan::ResolvedRun& run, const train::Engine& engine) {
  const auto& train = run.config.train;
  if (run.parts.size() > 1 || !run.shape.causal || run.shape.encoder_decoder())
    return {0};  // on the ranks of the last stage, after a head, of another length
  const char* weight = run.shape.tied_output ? "embedding.word_embeddings.weight" : "output_layer.weight";
  const parallel::VocabParallelOutput output(engine.parameters.get(weight), engine.context.tensor(),
                                             {.vocab = run.shape.vocab,
                                              .label_smoothing = train.label_smoothing,
                                              .chunk_tokens = plan::loss_chunk_tokens(run.config)});
  const std::int64_t s = run.config.data.seq_length / run.grid.sequence_shares(), b = train.micro_batch_size;
  const auto options = engine.parameters.options();
  const auto hidden = at::ones({s, b, run.shape.hidden}, options).requires_grad_(true);
  const auto labels = at::zeros({s, b}, options.dtype(at::kLong)),
             mask = at::ones({s, b}, options.dtype(train::loss_type(run.config)));
  std::vector<double> seconds;
  for (int i = 0; i < 3; ++i) {
    const Stopwatch watch;
    const auto loss = output.loss_sum(hidden, labels, mask);
    seconds.push_back(watch.seconds());
  }
  return seconds;
}

Measured measure(const plan::ResolvedRun& run, const BenchStepOptions& options, comm::Group world, at::Device device) {
  train::Engine engine(run, std::move(world), device);
  Measured measured;
  measured.startup_s = seconds_since_start();
  std::int64_t faults_before = page_faults();
  measured.timed = timed_steps(engine, run, options.warmup, options.steps, [&](std::int64_t i) {
    if (i < options.warmup) faults_before = page_faults();
  });
  measured.page_faults_per_step =
      static_cast<double>(page_faults() - faults_before) / static_cast<double>(options.steps);
  measured.peak_memory_bytes = kernels::held_memory(device).peak_bytes;
  measured.peak_tensor_bytes = device.is_cpu() ? kernels::memory_stats().peak_bytes : measured.peak_memory_bytes;
  if (options.profile) {
    const kernels::OperatorProfile profile;
    for (const double s : timed_steps(engine, run, 0, options.steps, {}).step_s) measured.profile.step_s += s;
    measured.profile.steps = options.steps;
    measured.profile.uses = profile.uses();
  }
  const parallel::ParameterStore* const frozen = engine.parameters.frozen().get();  // whose adapters are trained
  const std::int64_t buffers = engine.parameters.value_bytes() + engine.parameters.gradient_bytes() +
                               (frozen != nullptr ? frozen->value_bytes() : 0);
  const auto elements =
      static_cast<double>(engine.parameters.layout().size + (frozen != nullptr ? frozen->layout().size : 0));
  measured.bytes_per_parameter = static_cast<double>(buffers + engine.optimizer.bytes()) / elements;
  const plan::MemoryPlan planned =
      plan::memory_plan(run, engine.context.tensor().rank(), engine.context.pipeline().rank(), 0);
  measured.planned_bytes_per_parameter =
      static_cast<double>(planned.parameters + planned.gradients + planned.optimizer_state) / elements;
  measured.loss_layer_s = time_loss_layer(run, engine);
  if (engine.pipeline.measures()) {
    const auto timeline = engine.pipeline.timeline();
    if (timeline && engine.context.rank() == 0)
      measured.timeline = train::write_timeline(*timeline, run, run.config.train.train_iters, options.trace);
  }
  return measured;
}

// Operations of a step without those that it leaves out: of a BERT's tokens, the masked ones alone have logits.
double computed_flops(const plan::ResolvedRun& run, double flops) {
  if (!run.shape.masked_lm_head) return flops;
  const double output = plan::output_flops(run.shape, run.config.train.global_batch_size * run.config.data.seq_length);
  return flops - 3 * output * (1 - run.config.data.mask_prob);
}

constexpr const char* kBoundHow =
    "computed_flops_per_step (flops_per_step, which is Megatron-LM's count: causal attention half, padded output rows, "
    "no recomputation; less the logits of a BERT's tokens that are not masked) at matmul_peak_gflops (best of 24 "
    "products of 2048 x 2048 matrices in this process, on a GPU of 6 x 16 of 8192 x 8192, every second one our own, in "
    "the step's dtype or, where these "
    "are faster, in float32, on as many threads as the ranks have in all, or on one GPU), over step_ms; loss_layer is "
    "timed apart, after the steps, and taken off forward";

Json report(const plan::ResolvedRun& run, const BenchStepOptions& options, const Measured& measured, double peak_gflops,
            int threads) {
  const double step_s = median(measured.timed.step_s);
  const std::int64_t samples = run.config.train.global_batch_size;
  const double flops =
      plan::training_flops(run.shape, samples, run.config.data.seq_length, run.config.data.decoder_seq_length);
  const double computed = computed_flops(run, flops);
  const auto ms = [](const std::vector<double>& seconds) { return 1e3 * median(seconds); };
  const double loss_layer_ms = ms(measured.loss_layer_s) * static_cast<double>(options.microbatches);
  Json steps = Json::array();
  for (const double s : measured.timed.step_s) steps.push_back(1e3 * s);
  return {{"model", options.model},
          {"parameters", plan::parameter_count(run.shape)},
          {"dtype", run.config.train.dtype},
          {"kernels", kernels::instruction_set()},
          {"matmul_precision", kernels::matmul_precision(options.device == "cuda" ? at::kCUDA : at::kCPU)},
          {"micro_batch_size", options.micro_batch_size},
          {"microbatches", options.microbatches},
          {"seq_length", options.seq_length},
          {"dropout", options.dropout},
          {"tp", run.grid.size(plan::Axis::Tp)},
          {"cp", run.grid.sequence_shares()},
          {"pp", run.grid.size(plan::Axis::Pp)},
          {"stages", run.parts.size()},
          {"schedule", plan::schedule_text(run)},
          {"timeline", measured.timeline},
          {"dp", run.grid.sample_shares()},
          {"threads", threads},
          {"tokens_per_s", static_cast<double>(samples * run.config.data.seq_length) / step_s},
          {"step_ms", 1e3 * step_s},
          {"all_step_ms", steps},
          {"loss", measured.timed.loss},
          {"peak_memory_bytes", measured.peak_memory_bytes},
          {"peak_tensor_bytes", measured.peak_tensor_bytes},
          {"bytes_per_parameter", measured.bytes_per_parameter},
          {"planned_bytes_per_parameter", measured.planned_bytes_per_parameter},
          {"page_faults_per_step", measured.page_faults_per_step},
          {"startup_s", measured.startup_s},
          {"breakdown_ms",
           {{"forward", std::max(0.0, ms(measured.timed.forward_s) - loss_layer_ms)},
            {"loss_layer", loss_layer_ms},
            {"backward", ms(measured.timed.backward_s)},
            {"reduce", ms(measured.timed.reduce_s)},
            {"optimizer", ms(measured.timed.optimizer_s)}}},
          {"flops_per_step", flops},
          {"computed_flops_per_step", computed},
          {"matmul_peak_gflops", peak_gflops},
          {"bound_ms", 1e3 * computed / (1e9 * peak_gflops)},
          {"bound_fraction", computed / (1e9 * peak_gflops) / step_s},
          {"bound_how", kBoundHow}};
}

void print_table(const Json& json) {
  for (const auto& [name, value] : json.items()) {
    if (value.is_object())
      for (const auto& [part, ms] : value.items()) print("  {:22} {} ms\n", part, ms.dump());
    else
      print("{:24} {}\n", name, value.dump());
  }
}

/// Throws ConfigError in the words of this job's option where the machine has not what --kernels names.
void take_kernels(const std::string& name) {
  if (name == "auto") return;
  try {
    kernels::force_instruction_set(name);
  } catch (const ConfigError& error) {
    constexpr std::string_view kOfARun = "train.kernels";
    std::string message = error.what();
    for (std::size_t at = 0; (at = message.find(kOfARun, at)) != std::string::npos;)
      message.replace(at, kOfARun.size(), "kernels");
    throw ConfigError(message);
  }
}

int run_bench_step(const Args& args) {
  const auto place = comm::place_from(comm::process_environment());
  const auto [options, run] = bench_step_command(args);
  const plan::Besides smaller{.fix = "a smaller --model, --micro-batch-size or --seq-length"};
  run::check_memory(run, place, plan::Holding::Training, smaller);
  kernels::install_caching_allocator();
  take_kernels(options.kernels);
  kernels::set_matmul_precision(run.config.train.matmul_precision);
  std::optional<Measured> of_first_rank;
  const int code = run::run_on_ranks(run, place, [&](comm::Group world, at::Device device) {
    const bool first = world.rank() == 0;
    run::check_gpu_memory(run, world, device, plan::Holding::Training, smaller);
    Measured measured = measure(run, options, world, device);
    if (first) of_first_rank = std::move(measured);
    world.barrier();
    return kDone;
  });
  if (!of_first_rank) return code;
  const int threads = options.threads_per_rank > 0 ? options.threads_per_rank * run.grid.world_size() : usable_cores();
  const auto dtype = train::scalar_type(run.config);
  double peak_gflops = matmul_peak_gflops(dtype, options.device, threads);
  if (dtype != at::kDouble)
    peak_gflops = std::max(peak_gflops, matmul_peak_gflops(at::kFloat, options.device, threads));
  Json json = report(run, options, *of_first_rank, peak_gflops, threads);
  Json rows;
  if (options.profile) {
    // Of one rank, which has its share of the machine.
    const double world = run.grid.world_size(), copied_gb_s = measure_copied_gb_s(threads);
    rows = profile_rows(of_first_rank->profile, {.gflops = peak_gflops / world, .copied_gb_s = copied_gb_s / world});
    json["copied_gb_s"] = copied_gb_s;
    if (options.json) json["profile"] = rows;
    if (!options.svg.empty())
      write_file(options.svg, profile_flame(concat("One step of ", options.model, ", ", options.dtype), rows));
  }
  if (options.json)
    print_json(json);
  else
    print_table(json);
  if (options.profile && !options.json) print_text("\n" + profile_table(rows, "step"));
  return code;
}

}  // namespace

int bench_step(const Args& args) {
  return run::run_job_of_ranks([&] { return run_bench_step(args); });
}

}  // namespace megatron::app
