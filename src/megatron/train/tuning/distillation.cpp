#include "megatron/train/tuning/distillation.h"

#include <ATen/TensorOperators.h>

#include <memory>
#include <optional>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/machine/out_of_memory.h"
#include "megatron/checkpoint/weights.h"
#include "megatron/comm/first_rank.h"
#include "megatron/interchange/hugging_face/hf_config.h"
#include "megatron/interchange/weights.h"
#include "megatron/model/options.h"
#include "megatron/plan/parameters/buffer_layout.h"
#include "megatron/train/iteration.h"

namespace megatron::train {
namespace {

/// A teacher as the run's options compute it.
struct TeacherPlan {
  config::RunConfig config;
  plan::ModelShape shape;
};

TeacherPlan plan_teacher(const plan::ResolvedRun& run) {
  TeacherPlan teacher{run.config, {}};
  teacher.config.model = interchange::model_config_of(run.config.distill.teacher);
  teacher.config.train.recompute = "none";
  teacher.shape = interchange::shape_of(teacher.config.model);
  teacher.shape.padded_vocab =
      plan::pad_vocab(teacher.shape.vocab, run.config.model.make_vocab_size_divisible_by, run.config.parallel.tp);
  return teacher;
}

/// This rank's slice of a teacher, and the model on it.
struct Teacher {
  Teacher(TeacherPlan described, const parallel::ParallelContext& context)
      : parameters(make(described, context)),
        stage(model::transformer_options(described.config, described.shape), parameters, context.tensor()) {}

  static parallel::ParameterStore make(const TeacherPlan& described, const parallel::ParallelContext& context) {
    auto specs = plan::model_parameters(described.shape, context.tensor().size(), context.tensor().rank());
    for (plan::ParameterSpec& spec : specs) spec.init = plan::Init::Zero;  // they are read
    auto layout = plan::buffer_layout(specs, 0);
    parallel::ParameterStore store(std::move(specs), std::move(layout), scalar_type(described.config), context.device(),
                                   0, parallel::ParameterStore::Gradients::None);
    checkpoint::load_weights(*interchange::open_weights(described.config.distill.teacher), store, described.shape);
    return store;
  }

  parallel::ParameterStore parameters;
  model::TransformerStage stage;
};

at::Tensor widened(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
}

/// [s, b]: of each token KL(Q || P), of logits [s, b, v].
at::Tensor divergence(const at::Tensor& teacher, const at::Tensor& student, double temperature) {
  const at::Tensor log_q = (teacher / temperature).log_softmax(-1), log_p = (student / temperature).log_softmax(-1);
  return (log_q.exp() * (log_q - log_p)).sum(-1);
}

}  // namespace

void check_teacher(const plan::ResolvedRun& run) {
  const std::string& folder = run.config.distill.teacher;
  if (folder.empty()) return;
  const TeacherPlan teacher = plan_teacher(run);
  const auto need = [&](bool holds, const std::string& rule, const std::string& got, const std::string& fix) {
    if (!holds) throw ConfigError(rule_got_fix(rule, got, fix));
  };
  const config::ModelConfig& model = teacher.config.model;
  const config::ModelTraits& traits = config::model_traits(model.architecture);
  need(traits.causal && !traits.encoder_decoder && model.head == "tokens",
       concat("distill.teacher must be a GPT with its output layer, not ", model.architecture, "."), folder,
       "--distill.teacher FOLDER, a language model's");
  need(teacher.shape.vocab == run.shape.vocab, "distill.teacher must have the student's tokens.",
       concat(teacher.shape.vocab, " tokens, the student ", run.shape.vocab),
       concat("--model.vocab_size ", teacher.shape.vocab, " and the teacher's tokenizer"));
  need(teacher.shape.max_positions == 0 || teacher.shape.max_positions >= run.config.data.seq_length,
       "distill.teacher must have the positions of data.seq_length.", concat(teacher.shape.max_positions),
       concat("--data.seq_length ", teacher.shape.max_positions));
  plan::model_parameters(teacher.shape, run.config.parallel.tp, 0);  // an error where tp does not divide it
  checkpoint::compare_weights(*interchange::open_weights(folder), teacher.shape, /*strict=*/true);
}

ForwardStep distillation_step(const plan::ResolvedRun& run, Engine& engine) {
  std::shared_ptr<const Teacher> teacher;
  comm::run_on_every_rank(
      engine.context.world(),
      [&] {
        teacher = taking_memory_for("the teacher",
                                    [&] { return std::make_shared<const Teacher>(plan_teacher(run), engine.context); });
      },
      beat_of(run.config));
  const double alpha = run.config.distill.alpha, temperature = run.config.distill.temperature;
  const auto loss = [teacher, alpha, temperature](const model::TransformerStage& stage, at::Tensor x,
                                                  const model::Batch& batch, bool training) {
    if (!training) return stage.loss(std::move(x), batch, false);
    const at::Tensor student = widened(stage.logits(std::move(x), batch, true)),
                     taught = widened(teacher->stage.logits(batch).transpose(0, 1)), mask = batch.loss_mask_bs.t();
    at::Tensor each = divergence(taught, student, temperature) * (alpha * temperature * temperature);
    if (alpha < 1) {
      const at::Tensor chosen = student.log_softmax(-1).gather(-1, batch.labels_bs.t().unsqueeze(-1)).squeeze(-1);
      each = each - chosen * (1 - alpha);
    }
    model::LossSum sum;
    sum.sum = (each * mask).sum();
    sum.count = host_part(batch).loss_mask_bs.sum(at::kDouble).item<double>();
    return sum;
  };
  return {.loss = loss, .collected = {}};
}

}  // namespace megatron::train
