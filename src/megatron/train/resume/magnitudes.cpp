#include "megatron/train/resume/magnitudes.h"

#include <ATen/ops/zeros.h>

#include <map>
#include <utility>

#include "megatron/checkpoint/weights.h"
#include "megatron/parallel/magnitude.h"
#include "megatron/plan/parameters/adapters.h"
#include "megatron/train/resume/run_state.h"

namespace megatron::train {
namespace {

/// Of each magnitude the whole vector, of which this rank has set what it holds.
class RowNorms final : public checkpoint::WeightSource {
 public:
  /// `own`: the rank's slice, as `spec` has it.
  void add(const plan::ParameterSpec& spec, const at::Tensor& own) {
    Vector vector{at::zeros(spec.shape, own.options().device(at::kCPU)), spec.shape};
    std::int64_t taken = 0;
    for (const plan::ShardSlice& piece : spec.pieces) {
      vector.values.narrow(0, piece.offset, piece.length).copy_(own.narrow(0, taken, piece.length));
      taken += piece.length;
    }
    if (spec.pieces.empty()) vector.values.copy_(own);
    vectors_.insert_or_assign(spec.name, std::move(vector));
  }

  std::string name() const override { return "the weights' norms"; }
  std::vector<std::string> tensors() const override {
    std::vector<std::string> names;
    for (const auto& [name, vector] : vectors_) names.push_back(name);
    return names;
  }
  const std::vector<std::int64_t>* shape(const std::string& tensor) const override {
    const auto found = vectors_.find(tensor);
    return found == vectors_.end() ? nullptr : &found->second.shape;
  }
  std::string dtype(const std::string& /*tensor*/) const override { return "F32"; }
  void read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const override {
    into.copy_(vectors_.at(tensor).values.narrow(0, box.offset[0], box.shape[0]));
  }

 private:
  struct Vector {
    at::Tensor values;
    std::vector<std::int64_t> shape;
  };
  std::map<std::string, Vector> vectors_;
};

}  // namespace

void set_magnitudes(const plan::ResolvedRun& run, Engine& engine) {
  if (!run.shape.lora || !run.shape.lora->dora) return;
  const comm::Group& tp = engine.context.tensor();
  const auto get = [&](const std::string& name) { return engine.parameters.get(name); };
  RowNorms norms;
  for (const plan::StageSpec& stage : plan::parts_of_rank(run.parts, run.placement, engine.context.pipeline().rank()))
    for (std::int64_t number = stage.first_layer; number < stage.first_layer + stage.num_layers; ++number) {
      const plan::LayerSpec layer = run.shape.layer(number);
      for (const plan::Branch& branch : layer.branches)
        for (const plan::Linear& linear : branch.linears(layer.hidden))
          for (const plan::ProjectionSlice& part : plan::projection_slices(layer, linear, tp.size())) {
            if (!run.shape.lora->adapts(part.name)) continue;
            const bool row = linear.split == plan::Linear::Split::Inputs;
            const auto weight = get(layer.prefix + linear.name + ".weight"),
                       a = get(plan::adapter_name(layer, linear, part, "A")),
                       b = get(plan::adapter_name(layer, linear, part, "B"));
            norms.add(get(plan::magnitude_name(layer, linear, part))->spec,
                      parallel::adapted_norms(weight->arrived(), part, a->arrived(), b->arrived(),
                                              run.shape.lora->scale(), row ? tp : comm::Group()));
          }
    }
  load_weights(norms, engine, run.shape, /*strict=*/false);
}

}  // namespace megatron::train
