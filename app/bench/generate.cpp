#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>

#include "app/bench/bench.h"
#include "app/bench/bench_options.h"
#include "app/bench/profile.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/machine/cores.h"
#include "megatron/base/timer.h"
#include "megatron/config/options.h"
#include "megatron/config/value.h"
#include "megatron/generate/sampler.h"
#include "megatron/generate/staged_model.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/runtime.h"
#include "megatron/model/decoding/token_graph.h"
#include "megatron/pipeline/marks.h"
#include "megatron/run/kept_adapters.h"
#include "megatron/run/ranks.h"
#include "megatron/run/trained_model.h"
#include "megatron/train/engine.h"

namespace megatron::app {
namespace {

/// Bytes a second at which the rank's threads read memory: the best of a few sums over 512 MB and of as many products
/// with a vector, which ask for lines ahead.
double read_bandwidth() {
  constexpr std::int64_t kRows = 1 << 18, kColumns = 512;
  const auto data = at::ones({kRows, kColumns}, at::kFloat), x = at::ones({1, kColumns}, at::kFloat);
  const auto y = at::empty({1, kRows}, at::kFloat);
  double best = 0;
  for (int i = 0; i < 10; ++i) {
    const Stopwatch watch;
    if (i % 2 == 0)
      data.sum().item<float>();
    else
      kernels::few_rows_linear(y, x, data, {});
    best = std::max(best, static_cast<double>(data.nbytes()) / watch.seconds());
  }
  return best;
}

/// Bytes a second that a GPU reads and writes while it copies 1 GiB: the best of some times.
double copy_bandwidth(at::Device device) {
  const auto from = at::ones({1 << 29}, at::TensorOptions(at::kBFloat16).device(device)), to = at::empty_like(from);
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    constexpr int kCopies = 10;
    pipeline::Marks marks(device);
    marks.add();
    for (int k = 0; k < kCopies; ++k) to.copy_(from);
    marks.add();
    const auto times = marks.take();
    const double seconds = std::chrono::duration<double>(times[1] - times[0]).count();
    best = std::max(best, 2.0 * kCopies * static_cast<double>(from.nbytes()) / seconds);
  }
  return best;
}

/// The likeliest token of logits [1, vocab], drawn as generate() does, as the next input [1, 1].
at::Tensor greedy(const at::Tensor& logits) {
  const auto row = logits.to(at::kCPU, at::kDouble).contiguous();
  const std::span<const double> all(row.const_data_ptr<double>(), static_cast<std::size_t>(row.numel()));
  generate::require_finite(all, 0);
  return at::full({1, 1}, generate::sample(all, {.temperature = 0}, 0), at::kLong).to(logits.device());
}

struct Figures {
  std::vector<double> decode_s, prefill_s;  ///< of each repeat
  double load_s = 0, weight_bytes = 0, bandwidth = 0;
  bool graph = false;   ///< whether a token was one graph
  StepProfile reading;  ///< of --profile: of a prompt that is read
};

Figures measure(const BenchGenerateOptions& options, const run::TrainedModel& trained, const comm::Group& world,
                at::Device device) {
  Figures figures;
  const Stopwatch loading;
  const run::RankModel rank = run::load_rank(trained, world, device, trained.run.shape.max_positions);
  figures.load_s = loading.seconds();
  for (const auto& parameter : rank.parameters.all())
    if (parameter->spec.name != "embedding.position_embeddings.weight")
      figures.weight_bytes += static_cast<double>(parameter->value_bytes());
  const generate::StagedModel model(model::CachedGpt(rank.options, rank.part, rank.parameters, rank.context.tensor()),
                                    rank.context.pipeline(), rank.tensor());
  const std::int64_t longest = std::max(options.prefill_tokens, options.prompt_tokens);
  auto tokens = at::randint(trained.run.shape.vocab, {1, longest}, at::kLong).to(device);
  world.broadcast(tokens, 0);
  auto cache = model.make_cache(1, options.prompt_tokens + options.new_tokens);
  const auto graph = model.token_graph(cache);
  figures.graph = graph != nullptr;
  const auto read = [&] {
    auto prompt = model.make_cache(1, options.prefill_tokens);
    const Stopwatch watch;
    (void)model.forward(tokens.narrow(1, 0, options.prefill_tokens), prompt).flatten()[0].item<double>();
    return watch.seconds();
  };
  const auto write = [&] {
    cache.length = 0;
    auto next = greedy(model.forward(tokens.narrow(1, 0, options.prompt_tokens), cache));
    const Stopwatch watch;
    if (graph) graph->feed({next.item<std::int64_t>()});
    for (std::int64_t k = 0; k < options.new_tokens; ++k) {
      if (!graph) {
        next = greedy(model.forward(next, cache));
        continue;
      }
      graph->step();
      if (graph->chosen()[0] < 0) generate::require_finite(std::vector{std::nan("")}, options.prompt_tokens + k);
    }
    return watch.seconds();
  };
  for (std::int64_t i = 0; i <= options.repeats; ++i) {  // the first is not counted
    const double read_s = read(), written_s = write();
    if (i == 0) continue;
    figures.prefill_s.push_back(read_s);
    figures.decode_s.push_back(written_s);
  }
  if (options.profile) {
    const kernels::OperatorProfile profile;
    for (figures.reading.steps = 0; figures.reading.steps < options.repeats; ++figures.reading.steps)
      figures.reading.step_s += read();
    figures.reading.uses = profile.uses();
  }
  if (world.size() == 1) figures.bandwidth = device.is_cpu() ? read_bandwidth() : copy_bandwidth(device);
  return figures;
}

void report(const BenchGenerateOptions& options, const run::TrainedModel& trained, const Figures& figures) {
  const double tokens_per_s = static_cast<double>(options.new_tokens) / median(figures.decode_s);
  nlohmann::ordered_json fields{
      {"tokens_per_s", tokens_per_s},
      {"token_ms", 1e3 / tokens_per_s},
      {"prefill_tokens_per_s", static_cast<double>(options.prefill_tokens) / median(figures.prefill_s)},
      {"prefill_ms", 1e3 * median(figures.prefill_s)},
      {"load_s", figures.load_s},
      {"weight_bytes", static_cast<std::int64_t>(figures.weight_bytes)}};
  if (figures.bandwidth > 0) {
    fields[trained.run.config.parallel.device == "cpu" ? "read_bytes_per_s" : "copied_bytes_per_s"] = figures.bandwidth;
    fields["bound_tokens_per_s"] = figures.bandwidth / figures.weight_bytes;
    fields["bound_fraction"] = tokens_per_s * figures.weight_bytes / figures.bandwidth;
  }
  fields["token_graph"] = figures.graph;
  fields["dtype"] = trained.run.config.train.dtype;
  fields["weights"] = options.weights;
  if (!options.adapter.empty()) fields["adapter"] = options.adapter;
  fields["threads"] = options.threads_per_rank > 0 ? options.threads_per_rank
                                                   : std::max(1, usable_cores() / trained.run.grid.world_size());
  fields["instruction_set"] = kernels::instruction_set();
  nlohmann::ordered_json rows;
  if (options.profile) {
    const int threads = fields["threads"];
    rows = profile_rows(figures.reading,
                        {.gflops = matmul_peak_gflops(train::scalar_type(trained.run.config), at::kCPU, threads),
                         .copied_gb_s = measure_copied_gb_s(threads)});
    if (options.json) fields["profile"] = rows;
  }
  if (options.json) return print_json(fields);
  for (const auto& [name, value] : fields.items()) print("{:22} {}\n", name, value.dump());
  if (options.profile) print_text("\n" + profile_table(rows, "prompt"));
}

run::TrainedModel opened(const BenchGenerateOptions& options) {
  if (options.model.empty()) return run::open_trained_model(options, "bench generate");
  config::RunConfig recipe;
  config::load_toml(recipe, config_file(options.model, "configs", "--model"));
  return run::open_drawn_model(options, recipe, "bench generate");
}

int run_bench_generate(const Args& args) {
  const BenchGenerateOptions options = bench_generate_options(args);
  run::TrainedModel trained = opened(options);
  run::keep_adapter(trained, options.adapter, "bench generate");
  const std::int64_t context = trained.run.shape.max_positions;
  if (options.prompt_tokens + options.new_tokens > context || options.prefill_tokens > context)
    throw ConfigError(rule_got_fix(concat("bench generate: texts must fit into the model's context of ", context, "."),
                                   concat(std::max(options.prompt_tokens + options.new_tokens, options.prefill_tokens)),
                                   "--prompt-tokens 1 --new-tokens 1 --prefill-tokens 1, or what fits"));
  kernels::install_caching_allocator();
  return run::run_on_ranks(trained.run, comm::place_from(comm::process_environment()),
                           [&](const comm::Group& world, at::Device device) {
                             const Figures figures = measure(options, trained, world, device);
                             if (world.rank() == 0) report(options, trained, figures);
                             return kDone;
                           });
}

}  // namespace

int bench_generate(const Args& args) {
  return run::run_job_of_ranks([&] { return run_bench_generate(args); });
}

}  // namespace megatron::app
