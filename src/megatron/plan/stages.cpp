#include "megatron/plan/stages.h"

#include <algorithm>

#include "megatron/base/collected_errors.h"
#include "megatron/base/error.h"
#include "megatron/schedule/table.h"

namespace megatron::plan {
namespace {

std::string listed(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

int num_stages_of(const config::ParallelConfig& parallel, std::int64_t num_layers) {
  const std::int64_t of_stage = parallel.layers_per_virtual_stage;
  if (of_stage == 0) return parallel.pp * parallel.vpp;
  const std::int64_t unit = parallel.pp * of_stage;
  if (parallel.vpp != 1)
    throw ConfigError(rule_got_fix("parallel.layers_per_virtual_stage and parallel.vpp must not both be given.",
                                   concat(of_stage, " and ", parallel.vpp), "--vpp 1 (the default)"));
  if (num_layers % unit != 0)
    throw ConfigError(
        rule_got_fix("model.num_layers must divide by parallel.pp x parallel.layers_per_virtual_stage.",
                     concat(num_layers, " layers, pp ", parallel.pp, ", ", of_stage, " layers a virtual stage"),
                     "--parallel.layers_per_virtual_stage 0 (the default)"));
  return static_cast<int>(num_layers / of_stage);
}

std::string counted(std::int64_t count, const char* what) { return concat(count, " ", what, count == 1 ? "" : "s"); }

/// `layers` in `stages` equal shares; what the message calls them: `what`.
std::int64_t share(std::int64_t layers, std::int64_t stages, const std::string& what) {
  if (stages > 0 && layers >= stages && layers % stages == 0) return layers / stages;
  throw ConfigError(rule_got_fix(concat(what, " must divide by the stages that share them, with one for each."),
                                 concat(counted(layers, "layer"), ", ", counted(stages, "stage"))));  // with_fix()
}

/// parallel.first_stage_layers and last_stage_layers: those ranks have so many, the others share the rest.
std::vector<std::int64_t> with_ends_given(const config::ParallelConfig& parallel, std::int64_t num_layers,
                                          int num_stages) {
  const int pp = parallel.pp, chunks = num_stages / pp;
  const std::int64_t first = parallel.first_stage_layers, last = parallel.last_stage_layers;
  const std::int64_t others = pp - (first > 0 ? 1 : 0) - (last > 0 ? 1 : 0);
  if (pp < 2 || first % chunks != 0 || last % chunks != 0 || first + last > num_layers ||
      (others == 0 && first + last != num_layers))
    throw ConfigError(
        rule_got_fix("parallel.first_stage_layers and last_stage_layers must leave the model's other layers to the "
                     "ranks between, and divide by the stages of a rank.",
                     concat(first, " and ", last, " of ", num_layers, " layers, pp ", pp, ", vpp ", chunks)));
  std::int64_t between = 0;
  if (others > 0)
    between = share(num_layers - first - last, others * chunks, "layers between the first and the last pipeline rank");
  std::vector<std::int64_t> layers(static_cast<std::size_t>(num_stages), between);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    if (first > 0) layers[static_cast<std::size_t>(chunk * pp)] = first / chunks;
    if (last > 0) layers[static_cast<std::size_t>(chunk * pp + pp - 1)] = last / chunks;
  }
  return layers;
}

std::vector<std::int64_t> even_layers(const config::ParallelConfig& parallel, std::int64_t num_layers, int num_stages) {
  if (parallel.first_stage_layers > 0 || parallel.last_stage_layers > 0)
    return with_ends_given(parallel, num_layers, num_stages);
  const auto stages = static_cast<std::size_t>(num_stages);
  if (parallel.standalone_embedding_stage) {
    std::vector<std::int64_t> layers(stages, share(num_layers, num_stages - 1, "model.num_layers"));
    layers.front() = 0;
    return layers;
  }
  const std::int64_t embedding = parallel.account_for_embedding ? 1 : 0, loss = parallel.account_for_loss ? 1 : 0;
  std::vector<std::int64_t> layers(
      stages, share(num_layers + embedding + loss, num_stages,
                    concat("model.num_layers", embedding ? " + embedding" : "", loss ? " + loss" : "")));
  layers.front() -= embedding;
  layers.back() -= loss;
  if (layers.front() < 0 || layers.back() < 0)
    throw ConfigError(rule_got_fix("a stage must have more than the embedding and the loss that count as its layers.",
                                   listed(layers) + " layers by stage"));
  return layers;
}

/// The smallest of the changes that make an even split possible, as one types it; "" where none does.
std::string working_split(const config::ParallelConfig& parallel, std::int64_t num_layers) {
  const std::string& schedule = parallel.pp_schedule;
  const bool any_pp = schedule.empty() || schedule == schedule::kAuto;  // others need a pipeline
  const auto takes = [&](int vpp) {
    return any_pp || !schedule::is_name(schedule) || schedule::schedule_named(schedule).takes(vpp);
  };
  const auto works = [&](auto change) {
    config::ParallelConfig other = parallel;
    change(other);
    try {
      even_layers(other, num_layers, num_stages_of(other, num_layers));
      return (other.pp > 1 || (other.vpp == 1 && any_pp)) && (other.vpp == parallel.vpp || takes(other.vpp));
    } catch (const ConfigError&) {
      return false;
    }
  };
  using Option = std::int64_t config::ParallelConfig::*;
  const auto nearest_layers = [&](Option option, const char* name) -> std::string {
    if (parallel.*option == 0) return "";
    for (std::int64_t distance = 1; distance <= num_layers; ++distance)
      for (const std::int64_t layers : {parallel.*option - distance, parallel.*option + distance})
        if (layers >= 1 && layers <= num_layers && works([&](auto& other) { other.*option = layers; }))
          return concat("--parallel.", name, " ", layers);
    return "";
  };
  std::string fix = nearest_layers(&config::ParallelConfig::first_stage_layers, "first_stage_layers");
  if (fix.empty()) fix = nearest_layers(&config::ParallelConfig::last_stage_layers, "last_stage_layers");
  if (!fix.empty()) return fix;
  for (const auto& [option, name] : {std::pair{&config::ParallelConfig::first_stage_layers, "first_stage_layers"},
                                     std::pair{&config::ParallelConfig::last_stage_layers, "last_stage_layers"}})
    if (parallel.*option > 0 && works([o = option](auto& other) { other.*o = 0; }))
      return concat("--parallel.", name, " 0");
  if (parallel.first_stage_layers > 0 && parallel.last_stage_layers > 0 &&
      works([](auto& other) { other.first_stage_layers = other.last_stage_layers = 0; }))
    return "--parallel.first_stage_layers 0 --parallel.last_stage_layers 0";
  const bool plain = parallel.first_stage_layers == 0 && parallel.last_stage_layers == 0 &&
                     !parallel.account_for_embedding && !parallel.account_for_loss &&
                     !parallel.standalone_embedding_stage;
  if (plain && parallel.pp > 1 && num_layers >= num_stages_of(parallel, num_layers))
    return "--pp-layout balanced, or one that names each stage's layers";
  for (const auto& [option, name] : {std::pair{&config::ParallelConfig::account_for_embedding, "account_for_embedding"},
                                     std::pair{&config::ParallelConfig::account_for_loss, "account_for_loss"}})
    if (parallel.*option && works([o = option](auto& other) { other.*o = false; }))
      return concat("--parallel.", name, " false");
  for (int vpp = parallel.vpp - 1; vpp >= 1; --vpp)
    if (works([&](auto& other) { other.vpp = vpp; })) return concat("--vpp ", vpp);
  for (int pp = parallel.pp - 1; pp >= 1; --pp)
    if (works([&](auto& other) { other.pp = pp; })) return concat("--pp ", pp);
  if (parallel.standalone_embedding_stage && works([](auto& other) { other.standalone_embedding_stage = false; }))
    return "--parallel.standalone_embedding_stage false";
  if (plain && num_layers >= parallel.pp && takes(static_cast<int>(num_layers / parallel.pp)))
    return concat("--vpp ", num_layers / parallel.pp, " --pp-layout balanced");
  return "";
}

/// Equal numbers of layers, but for what the options about first and last stage say.
std::vector<std::int64_t> even_layers_or_fix(const config::ParallelConfig& parallel, std::int64_t num_layers,
                                             int num_stages) {
  try {
    return even_layers(parallel, num_layers, num_stages);
  } catch (const ConfigError& error) {
    const std::string fix = working_split(parallel, num_layers);
    throw ConfigError(concat(error.what(), "\n  fix:  ", fix.empty() ? "--pp 1 --vpp 1" : fix));
  }
}

/// Of the ways to say how layers are split, only one.
void check_one_way(const config::ParallelConfig& parallel) {
  const bool ends = parallel.first_stage_layers > 0 || parallel.last_stage_layers > 0;
  const bool accounts = parallel.account_for_embedding || parallel.account_for_loss;
  std::string given, fix;
  int ways = 0;
  const auto way = [&](bool is_given, const char* name, const char* off) {
    if (!is_given) return;
    given += (ways > 0 ? " and " : "") + std::string(name);
    if (ways++ > 0) fix += (fix.empty() ? "" : " ") + std::string(off);  // the first stays
  };
  way(!parallel.pp_layout.empty(), "parallel.pp_layout", "");
  way(ends, "parallel.first_stage_layers or last_stage_layers",
      "--parallel.first_stage_layers 0 --parallel.last_stage_layers 0");
  way(accounts, "parallel.account_for_embedding or account_for_loss",
      "--parallel.account_for_embedding false --parallel.account_for_loss false");
  way(parallel.standalone_embedding_stage, "parallel.standalone_embedding_stage",
      "--parallel.standalone_embedding_stage false");
  if (ways > 1) throw ConfigError(rule_got_fix("layers must be split in one way.", given, fix));
}

void check_layout(const std::vector<StageSpec>& parts, const config::ParallelConfig& parallel,
                  std::int64_t num_layers) {
  std::int64_t layers = 0;
  for (const StageSpec& part : parts) layers += part.num_layers;
  if (layers != num_layers)
    throw ConfigError(rule_got_fix("parallel.pp_layout must place the layers of the model.",
                                   concat(layers, " layers in the layout, model.num_layers ", num_layers),
                                   "--pp-layout balanced"));
  const auto stages = static_cast<int>(parts.size());
  const bool chunks_given = parallel.vpp != 1 || parallel.layers_per_virtual_stage != 0;
  const int wanted = chunks_given ? num_stages_of(parallel, num_layers) : parallel.pp;
  if (chunks_given ? stages != wanted : stages % parallel.pp != 0)
    throw ConfigError(rule_got_fix(concat("parallel.pp_layout must have ", chunks_given ? "" : "a multiple of ", wanted,
                                          " stages, as parallel.pp", chunks_given ? " and vpp say." : " says."),
                                   concat(counted(stages, "stage"), " in the layout"), "--pp-layout balanced"));
}

}  // namespace

std::vector<StageSpec> parts_of_layers(const std::vector<std::int64_t>& layers) {
  std::vector<StageSpec> parts;
  std::int64_t first = 0;
  for (const std::int64_t count : layers) {
    const auto stage = static_cast<int>(parts.size());
    parts.push_back({first, count, stage == 0, stage + 1 == static_cast<int>(layers.size()), stage});
    first += count;
  }
  return parts;
}

std::vector<StageSpec> parts_of_rank(const std::vector<StageSpec>& parts, const schedule::Placement& placement,
                                     int pp_rank) {
  std::vector<StageSpec> held;
  for (const int stage : placement.stages_of(pp_rank)) held.push_back(parts[static_cast<std::size_t>(stage)]);
  return held;
}

void reset_stages(config::ParallelConfig& parallel) {
  parallel.pp_layout.clear();
  parallel.layers_per_virtual_stage = parallel.first_stage_layers = parallel.last_stage_layers = 0;
  parallel.account_for_embedding = parallel.account_for_loss = parallel.standalone_embedding_stage = false;
}

std::vector<StageSpec> stage_parts(const config::ParallelConfig& parallel, std::int64_t num_layers,
                                   const SplitCosts& costs) {
  check_one_way(parallel);
  std::vector<StageSpec> parts;
  if (!parallel.pp_layout.empty() && parallel.pp_layout != "balanced") {
    parts = parse_layout(parallel.pp_layout);
    check_layout(parts, parallel, num_layers);
  } else {
    const int num_stages = num_stages_of(parallel, num_layers);
    parts = parts_of_layers(parallel.pp_layout.empty() ? even_layers_or_fix(parallel, num_layers, num_stages)
                                                       : balanced_layers(num_layers, num_stages, costs));
  }
  if (parallel.pp == 1 && parts.size() > 1)
    throw ConfigError(rule_got_fix("several stages on a rank need a pipeline: parallel.pp of at least 2.",
                                   concat(parts.size(), " stages, pp 1"), "--vpp 1, or --pp 2"));
  return parts;
}

namespace {

/// Layers of the ranks that share one of a T5's stacks, `first` being the number of its first layer.
std::vector<std::int64_t> stack_layers(const config::ParallelConfig& parallel, const SplitCosts& costs, bool encoder,
                                       std::int64_t first, std::int64_t layers) {
  const int ranks = encoder ? parallel.pipeline_split_rank : parallel.pp - parallel.pipeline_split_rank;
  const std::string what = encoder ? "the encoder's layers" : "the decoder's layers";
  if (parallel.pp_layout.empty())
    return std::vector<std::int64_t>(static_cast<std::size_t>(ranks), share(layers, ranks, what));
  if (layers < ranks)
    throw ConfigError(rule_got_fix(concat(what, " must be one for each of the stages that share them."),
                                   concat(counted(layers, "layer"), ", ", counted(ranks, "stage"))));  // with_fix()
  SplitCosts stack{.layers = {},
                   .embedding = encoder ? costs.embedding : 0,
                   .output = encoder ? 0 : costs.output,
                   .begins = encoder,
                   .ends = !encoder};
  if (!costs.layers.empty()) stack.layers.assign(costs.layers.begin() + first, costs.layers.begin() + first + layers);
  return balanced_layers(layers, ranks, stack);
}

}  // namespace

std::vector<StageSpec> split_stage_parts(const config::ParallelConfig& parallel, std::int64_t encoder_layers,
                                         std::int64_t decoder_layers, const SplitCosts& costs) {
  const int split = parallel.pipeline_split_rank;
  if (split >= parallel.pp)
    throw ConfigError(rule_got_fix("parallel.pipeline_split_rank must be below parallel.pp.",
                                   concat("split rank ", split, ", pp ", parallel.pp),
                                   "--parallel.pipeline_split_rank 0 (the default)"));
  const bool layout = !parallel.pp_layout.empty() && parallel.pp_layout != "balanced";
  const bool others = parallel.vpp != 1 || parallel.layers_per_virtual_stage != 0 || layout ||
                      parallel.first_stage_layers > 0 || parallel.last_stage_layers > 0 ||
                      parallel.account_for_embedding || parallel.account_for_loss ||
                      parallel.standalone_embedding_stage;
  if (others)
    throw ConfigError(rule_got_fix("layers must be split in one way.",
                                   "parallel.pipeline_split_rank, and another option that shares out layers",
                                   "--parallel.pipeline_split_rank 0 (the default)"));
  const bool enough = encoder_layers >= split && decoder_layers >= parallel.pp - split;
  const char* const fix =
      enough ? "--pp-layout balanced" : "--parallel.pipeline_split_rank 0 (the decoder begins where the encoder ends)";
  std::vector<std::int64_t> layers;
  with_fix(fix, [&] {
    layers = stack_layers(parallel, costs, /*encoder=*/true, 0, encoder_layers);
    const auto decoder = stack_layers(parallel, costs, /*encoder=*/false, encoder_layers, decoder_layers);
    layers.insert(layers.end(), decoder.begin(), decoder.end());
  });
  return parts_of_layers(layers);
}

}  // namespace megatron::plan
