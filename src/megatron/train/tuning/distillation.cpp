#include "megatron/train/tuning/distillation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/machine/out_of_memory.h"
#include "megatron/checkpoint/weights.h"
#include "megatron/comm/agreement.h"
#include "megatron/families/hf_config.h"
#include "megatron/interchange/weights.h"
#include "megatron/model/options.h"
#include "megatron/parallel/backward.h"
#include "megatron/plan/cost/fit/teacher.h"
#include "megatron/plan/cost/sequence_exchange.h"
#include "megatron/plan/parameters/buffer_layout.h"
#include "megatron/train/data/batches.h"
#include "megatron/train/iteration.h"
#include "megatron/train/log/timers.h"
#include "megatron/train/pipeline.h"

namespace megatron::train {
namespace {

/// The run with the teacher as its model, on the same ranks.
plan::ResolvedRun plan_teacher(const plan::ResolvedRun& run) {
  plan::ResolvedRun teacher = run;
  teacher.config.model = interchange::model_config_of(run.config.distill.teacher);
  teacher.config.train.recompute = "none";
  teacher.config.train.recompute_partial_microbatches = 0;
  teacher.config.parallel.cp_comm_type = "auto";  // its heads may not divide as the student's
  teacher.shape = plan::padded_teacher(run, families::shape_of(teacher.config.model));
  teacher.parts = plan::teacher_parts(run, teacher.shape.num_layers);
  return teacher;
}

std::vector<plan::StageSpec> parts_of(const plan::ResolvedRun& run, const parallel::ParallelContext& context) {
  return plan::parts_of_rank(run.parts, run.placement, context.pipeline().rank());
}

parallel::ParameterStore load(const plan::ResolvedRun& teacher, const parallel::ParallelContext& context) {
  auto specs = plan::model_parameters(teacher.shape, context.tensor().size(), context.tensor().rank(),
                                      parts_of(teacher, context));
  for (plan::ParameterSpec& spec : specs) spec.init = plan::Init::Zero;  // they are read
  auto layout = plan::buffer_layout(specs, 0);
  parallel::ParameterStore store(std::move(specs), std::move(layout), scalar_type(teacher.config), context.device(), 0,
                                 parallel::ParameterStore::Gradients::None);
  checkpoint::load_weights(*interchange::open_weights(teacher.config.distill.teacher), store, teacher.shape);
  return store;
}

std::vector<model::TransformerStage> make_stages(const plan::ResolvedRun& teacher,
                                                 const parallel::ParallelContext& context,
                                                 const parallel::ParameterStore& parameters) {
  model::TransformerOptions options = model::transformer_options(teacher.config, teacher.shape);
  options.sequence = {.ranks = context.sequence(), .exchange = plan::sequence_exchange(teacher.config, teacher.shape)};
  std::vector<model::TransformerStage> stages;
  for (const plan::StageSpec& part : parts_of(teacher, context))
    stages.emplace_back(options, part, parameters, context.tensor());
  return stages;
}

/// What this rank has of a teacher: its slices of its stages.
class Teacher {
 public:
  Teacher(const plan::ResolvedRun& student, const parallel::ParallelContext& context)
      : run_(plan_teacher(student)),
        parameters_(load(run_, context)),
        stages_(make_stages(run_, context, parameters_)) {}

  /// So that layers before the last stage are computed on the ranks that have them. Collective over the pipeline.
  void connect(const parallel::ParallelContext& context, Timers& timers) {
    if (context.pipeline().size() == 1) return;
    gatherer_ =
        std::make_unique<optim::ParameterGatherer>(parameters_, comm::Group(), std::vector<plan::Shard>(), false);
    pipeline_ = std::make_unique<Pipeline>(run_, context, parameters_, stages_, nullptr, *gatherer_, timers);
    pipeline_->use({.loss = keep_input, .collected = {}});
  }

  /// By microbatch what goes into the last stage, where this rank holds that. Collective over the model.
  std::vector<at::Tensor> inputs_of_last(int num_microbatches, const MicrobatchSource& microbatch) {
    return pipeline_->evaluate(num_microbatches, microbatch).non_loss;
  }

  /// [s, b, v], where this rank holds the last stage. `x`: what goes into that; undefined where it is the whole model.
  at::Tensor logits(at::Tensor x, const model::Batch& batch) const {
    const c10::NoGradGuard no_grad;
    return stages_.back().logits(std::move(x), batch, /*training=*/false);
  }

 private:
  static model::LossSum keep_input(const model::TransformerStage&, at::Tensor x, const model::Batch&, bool) {
    model::LossSum loss;
    loss.sum = at::zeros({}, x.options());
    loss.non_loss = std::move(x);
    return loss;
  }

  plan::ResolvedRun run_;
  parallel::ParameterStore parameters_;
  std::vector<model::TransformerStage> stages_;
  std::unique_ptr<optim::ParameterGatherer> gatherer_;
  std::unique_ptr<Pipeline> pipeline_;  // of several ranks
};

at::Tensor widened(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
}

/// The loss of distillation, differentiable by the student's logits.
struct Distillation {
  double alpha, temperature;

  /// Summed over the tokens that count. `student`, `taught`: logits [s, b, v], whose second is overwritten by the
  /// gradient of the first; `labels`, `mask`: [s, b].
  at::Tensor operator()(const at::Tensor& student, const at::Tensor& taught, const at::Tensor& labels,
                        const at::Tensor& mask) const {
    const at::Tensor taught_tv = taught.flatten(0, 1);
    // Before the loss is scaled, fp16 has too few numbers near zero.
    const at::Tensor gradient =
        taught_tv.scalar_type() == at::kHalf ? at::empty_like(taught_tv, at::kFloat) : taught_tv;
    const at::Tensor sum = parallel::without_autograd(
        [&] { return computed(student.flatten(0, 1), taught_tv, labels.flatten(), mask.flatten(), gradient); });
    return parallel::with_backward({student}, sum,
                                   [gradient, dtype = student.scalar_type(), sizes = student.sizes().vec()](
                                       const std::vector<at::Tensor>& grads) -> std::vector<at::Tensor> {
                                     return {gradient.mul_(grads[0]).to(dtype).view(sizes)};
                                   });
  }

  /// Of tokens t, some at a time, so that nothing but logits [t, v] is as large. Writes `gradient` [t, v].
  at::Tensor computed(const at::Tensor& student, const at::Tensor& taught, const at::Tensor& labels,
                      const at::Tensor& mask, const at::Tensor& gradient) const {
    constexpr std::int64_t kNumbersAtOnce = std::int64_t{1} << 22;
    const std::int64_t tokens = student.size(0), at_once = std::max<std::int64_t>(1, kNumbersAtOnce / student.size(1));
    at::Tensor sum = at::zeros({}, student.options().dtype(at::kDouble));
    for (std::int64_t begin = 0; begin < tokens; begin += at_once) {
      const auto part = [&](const at::Tensor& all) { return all.narrow(0, begin, std::min(at_once, tokens - begin)); };
      const at::Tensor logits = widened(part(student)), counts = part(mask).unsqueeze(-1),
                       log_p = (logits / temperature).log_softmax(-1),
                       log_q = (widened(part(taught)) / temperature).log_softmax(-1), q = log_q.exp();
      at::Tensor each = (q * (log_q - log_p)).sum(-1, /*keepdim=*/true) * (alpha * temperature * temperature);
      at::Tensor slope = (log_p.exp() - q) * (alpha * temperature);
      if (alpha < 1) {
        const at::Tensor log_words = logits.log_softmax(-1), chosen = part(labels).unsqueeze(-1);
        each -= log_words.gather(-1, chosen) * (1 - alpha);
        slope += log_words.exp() * (1 - alpha);
        slope.scatter_add_(-1, chosen, at::full_like(each, alpha - 1));
      }
      sum += (each * counts).sum(at::kDouble);
      part(gradient).copy_(slope * counts);
    }
    return sum;
  }
};

}  // namespace

std::optional<plan::TeacherNetwork> teacher_of(const config::RunConfig& config) {
  if (config.distill.teacher.empty()) return std::nullopt;
  const config::ModelConfig network = interchange::model_config_of(config.distill.teacher);
  return plan::TeacherNetwork{network, families::shape_of(network)};
}

void check_teacher(const plan::ResolvedRun& run) {
  const std::string& folder = run.config.distill.teacher;
  if (folder.empty()) return;
  const plan::ResolvedRun teacher = plan_teacher(run);
  plan::check_teacher_network(run, {teacher.config.model, families::shape_of(teacher.config.model)});
  checkpoint::compare_weights(*interchange::open_weights(folder), teacher.shape, /*strict=*/true);
}

ForwardStep distillation_step(const plan::ResolvedRun& run, Engine& engine) {
  std::shared_ptr<Teacher> teacher;
  std::exception_ptr lack;  // of memory: the rank's own, with what it was planned to hold
  comm::run_together(
      engine.context.world(),
      [&] {
        try {
          teacher = taking_memory_for("the teacher", [&] { return std::make_shared<Teacher>(run, engine.context); });
        } catch (const OutOfMemory&) {
          lack = std::current_exception();
        }
      },
      beat_of(run.config));
  if (lack) std::rethrow_exception(lack);
  teacher->connect(engine.context, engine.timers);
  const Distillation distillation{.alpha = run.config.distill.alpha, .temperature = run.config.distill.temperature};
  ForwardStep step;
  step.loss = [teacher, distillation](const model::TransformerStage& stage, at::Tensor x, const model::Batch& batch,
                                      bool training) {
    if (!training) return stage.loss(std::move(x), batch, false);
    const at::Tensor student = stage.logits(std::move(x), batch, true), taught = teacher->logits(batch.prepared, batch);
    model::LossSum sum;
    sum.sum = distillation(student, taught, batch.labels_bs.t(), batch.loss_mask_bs.t());
    sum.count = host_part(batch).loss_mask_bs.sum(at::kDouble).item<double>();
    return sum;
  };
  if (engine.context.pipeline().size() > 1)
    step.prepare = [teacher](int num_microbatches, const MicrobatchSource& microbatch) {
      return teacher->inputs_of_last(num_microbatches, microbatch);
    };
  return step;
}

}  // namespace megatron::train
