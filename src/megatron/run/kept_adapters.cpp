#include "megatron/run/kept_adapters.h"

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <map>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/machine/out_of_memory.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/weights.h"
#include "megatron/interchange/adapters/adapters.h"
#include "megatron/interchange/weights.h"
#include "megatron/plan/cost/rank_buffers.h"
#include "megatron/plan/parameters/adapters.h"
#include "megatron/plan/parameters/buffer_layout.h"
#include "megatron/run/memory_check.h"
#include "megatron/run/ranks.h"
#include "megatron/train/engine.h"

namespace megatron::run {
namespace {

/// Those matrices of adapters that `source` has, of the layers `part` on rank `rank`.
std::vector<plan::ParameterSpec> specs_of(const checkpoint::WeightSource& source, const plan::ModelShape& shape,
                                          const plan::ResolvedRun& run, int rank, const plan::StageSpec& part) {
  const int tp = run.grid.size(plan::Axis::Tp),
            tp_rank = run.grid.coord_of(rank)[static_cast<std::size_t>(plan::Axis::Tp)];
  std::vector<plan::ParameterSpec> specs =
      plan::adapter_parameters(shape, tp, tp_rank, {part}, plan::expert_share(run, rank));
  std::erase_if(specs, [&](const plan::ParameterSpec& spec) { return source.shape(spec.name) == nullptr; });
  for (plan::ParameterSpec& spec : specs) spec.init = plan::Init::Zero;  // they are read
  return specs;
}

/// Elements of the matrices, and on a CPU of the copies of B that few rows read (kernels::LowRank).
std::int64_t elements_of(const std::vector<plan::ParameterSpec>& specs, bool on_cpu) {
  std::int64_t elements = 0;
  for (const plan::ParameterSpec& spec : specs)
    elements += spec.local_size() * (on_cpu && spec.name.ends_with(".lora_B.weight") ? 2 : 1);
  return elements;
}

/// The model with adapters on every part: which there are the source says.
plan::ModelShape adapted_shape(plan::ModelShape shape, plan::Lora lora) {
  lora.targets = {"all-linear"};
  shape.lora = std::move(lora);
  return shape;
}

/// Names of the matrices that layers may keep of adapters with magnitudes, or without. Experts keep no magnitudes.
std::set<std::string> kept_names(const plan::ModelShape& shape, bool dora) {
  std::set<std::string> names;
  for (std::int64_t number = 0; number < shape.num_layers; ++number) {
    const plan::LayerSpec layer = shape.layer(number);
    for (const plan::Branch& branch : layer.branches) {
      if (dora && std::holds_alternative<plan::Experts>(branch.inner)) continue;
      for (const plan::Linear& linear : branch.linears(layer.hidden)) {
        for (const plan::ProjectionSlice& part : plan::projection_slices(layer, linear, 1))
          names.insert({plan::adapter_name(layer, linear, part, "A"), plan::adapter_name(layer, linear, part, "B"),
                        plan::magnitude_name(layer, linear, part)});
      }
    }
  }
  return names;
}

std::string merging_of(const std::string& folder) {
  return concat("merge them: megatron checkpoint export --load ", folder, " --output TO, and --load TO");
}

/// Throws ConfigError where some of a layer's experts have an adapter of a part, and others have none.
void check_experts(const checkpoint::WeightSource& source, const plan::ModelShape& shape, const std::string& folder,
                   const char* job) {
  for (std::int64_t number = 0; number < shape.num_layers; ++number) {
    const plan::LayerSpec layer = shape.layer(number);
    std::map<std::string, bool> adapted;  // parts of the experts before
    for (const plan::Branch& branch : layer.branches)
      for (const plan::Linear& linear : branch.linears(layer.hidden))
        for (const plan::ProjectionSlice& part : plan::projection_slices(layer, linear, 1)) {
          const bool has = source.shape(plan::adapter_name(layer, linear, part, "A")) != nullptr;
          if (linear.expert < 0 || adapted.emplace(part.name, has).first->second == has) continue;
          throw ConfigError(
              rule_got_fix(concat(job, ": all of a layer's experts must have an adapter, or none."),
                           concat(folder, ": ", layer.prefix, linear.name, has ? " has" : " has no", " adapter of ",
                                  part.name, has ? ", others have none" : ", others have"),
                           merging_of(folder)));
        }
  }
}

void check_folder(const TrainedModel& model, const std::string& folder, const char* job) {
  std::error_code unknown;
  const bool there = std::filesystem::exists(folder, unknown), adapts = there && interchange::holds_adapter(folder);
  if (there && !adapts && std::filesystem::exists(std::filesystem::path(folder) / "checkpoints", unknown))
    (void)checkpoint::read_manifest(checkpoint::find_checkpoint(folder));  // what is damaged is said
  if (!adapts)
    throw ConfigError(rule_got_fix(concat(job, ": adapters must be in a folder of a run with lora.rank, or PEFT's."),
                                   concat("none in ", folder), "the folder with adapter_config.json, or the run's"));
  if (interchange::holds_adapter(model.folder))
    throw ConfigError(rule_got_fix(concat(job, ": adapters lie beside the weights of a whole model."),
                                   concat("--load ", model.folder, ", which holds adapters"),
                                   "--load BASE, the model that they were trained on"));
}

}  // namespace

void keep_adapters(TrainedModel& model, const std::vector<std::string>& folders, const char* job) {
  if (folders.empty()) return;
  const plan::ResolvedRun& run = model.run;
  if (!run.shape.causal)
    throw ConfigError(rule_got_fix(concat(job, ": adapters lie beside the weights of models that write texts."),
                                   "an encoder", merging_of(folders.front())));
  const auto element = static_cast<std::int64_t>(c10::elementSize(train::scalar_type(run.config)));
  const bool on_cpu = run.config.parallel.device == "cpu";
  for (const std::string& folder : folders) {
    check_folder(model, folder, job);
    const interchange::OpenedAdapter opened = interchange::open_kept(folder, model.folder);
    const std::set<std::string> names = kept_names(run.shape, opened.lora.dora);
    for (const std::string& name : opened.matrices->tensors())
      if (!names.contains(name))
        throw ConfigError(rule_got_fix(concat(job, ": adapters of experts with DoRA cannot lie beside their weights."),
                                       concat(folder, ": \"", printable(name), "\""), merging_of(folder)));
    check_experts(*opened.matrices, run.shape, folder, job);
    const plan::ModelShape shape = adapted_shape(run.shape, opened.lora);
    for (int rank = 0; rank < run.grid.world_size(); ++rank)
      for (const plan::StageSpec& part : plan::parts_of_rank(
               run.parts, run.placement, run.grid.coord_of(rank)[static_cast<std::size_t>(plan::Axis::Pp)]))
        model.kept_bytes += element * elements_of(specs_of(*opened.matrices, shape, run, rank, part), on_cpu);
    model.kept.push_back(folder);
  }
  check_memory(model, {.what = "adapters", .fix = "fewer adapters"});
}

void keep_adapter(TrainedModel& model, const std::string& folder, const char* job) {
  if (folder.empty()) return;
  keep_adapters(model, {folder}, job);
  model.usual_adapter = 1;
}

std::shared_ptr<const model::StageAdapters> load_kept(const TrainedModel& model, const plan::StageSpec& part,
                                                      const parallel::ParallelContext& context) {
  if (model.kept.empty()) return nullptr;
  const auto kept = std::make_shared<model::StageAdapters>();
  const config::ModelConfig config = interchange::model_config_of(model.folder);
  const plan::ResolvedRun& run = model.run;
  for (const std::string& folder : model.kept) {
    const interchange::OpenedAdapter opened =
        interchange::open_adapter(folder, config, model.folder, interchange::AdapterUse::Merging);
    const plan::ModelShape shape = adapted_shape(run.shape, opened.lora);
    model::StageAdapters::One& one = kept->all.emplace_back();
    one.lora = *shape.lora;
    auto specs = specs_of(*opened.matrices, shape, run, context.rank(), part);
    if (specs.empty()) continue;
    auto layout = plan::buffer_layout(specs, 0);
    taking_memory_for("adapters", [&] {
      const parallel::ParameterStore store(std::move(specs), std::move(layout), train::scalar_type(run.config),
                                           context.device(), run.config.train.seed,
                                           parallel::ParameterStore::Gradients::None);
      checkpoint::load_weights(*opened.matrices, store, shape, /*strict=*/false);
      for (const parallel::ParameterPtr& matrix : store.all()) one.matrices.emplace(matrix->spec.name, matrix);
    });
  }
  kept->choice->set_usual(model.usual_adapter);
  return kept;
}

}  // namespace megatron::run
