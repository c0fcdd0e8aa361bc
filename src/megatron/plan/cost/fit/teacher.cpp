#include "megatron/plan/cost/fit/teacher.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/config/tables/model_kinds.h"
#include "megatron/plan/cost/rank_buffers.h"
#include "megatron/plan/parameters/buffer_layout.h"
#include "megatron/plan/parameters/parameters.h"

namespace megatron::plan {

std::vector<StageSpec> teacher_parts(const ResolvedRun& student, std::int64_t layers) {
  const auto stages = static_cast<std::int64_t>(student.parts.size());
  std::vector<std::int64_t> of_stages(student.parts.size(), layers / stages);
  for (std::int64_t i = 0; i < layers % stages; ++i) ++of_stages[static_cast<std::size_t>(i)];
  return parts_of_layers(of_stages);
}

ModelShape padded_teacher(const ResolvedRun& student, ModelShape teacher) {
  teacher.padded_vocab =
      pad_vocab(teacher.vocab, student.config.model.make_vocab_size_divisible_by, student.config.parallel.tp);
  return teacher;
}

void check_teacher_network(const ResolvedRun& student, const TeacherNetwork& known) {
  const auto& [network, teacher] = known;
  const auto need = [](bool holds, const std::string& rule, const std::string& got, const std::string& fix) {
    if (!holds) throw ConfigError(rule_got_fix(rule, got, fix));
  };
  const config::ModelTraits& traits = config::model_traits(network.architecture);
  need(traits.causal && !traits.encoder_decoder && network.head == "tokens",
       concat("distill.teacher must be a GPT with its output layer, not ", network.architecture, "."),
       student.config.distill.teacher, "a language model's folder: --distill.teacher FOLDER");
  need(teacher.vocab == student.shape.vocab, "distill.teacher must have the student's tokens.",
       concat(teacher.vocab, " tokens, the student ", student.shape.vocab),
       concat("the teacher's tokenizer, with --model.vocab_size ", teacher.vocab));
  need(teacher.max_positions == 0 || teacher.max_positions >= student.config.data.seq_length,
       "distill.teacher must have the positions of data.seq_length.", concat(teacher.max_positions),
       concat("--data.seq_length ", teacher.max_positions));
  need(teacher.num_layers >= std::ssize(student.parts), "distill.teacher must have a layer for each stage.",
       concat(teacher.num_layers, " layers, ", student.parts.size(), " stages"), "fewer stages: --pp 1 (the default)");
  const int tp = student.config.parallel.tp;
  try {
    model_parameters(padded_teacher(student, teacher), tp, 0);
  } catch (const ConfigError&) {  // which names options of the student
    throw ConfigError(rule_got_fix(
        "parallel.tp must divide the layers of distill.teacher, too.",
        concat("tp ", tp, ", the teacher's ", teacher.num_heads, " heads in ", teacher.groups(), " groups"),
        "--tp 1 (the default)"));
  }
}

std::int64_t teacher_bytes(const ResolvedRun& student, int pp_rank) {
  if (!student.teacher) return 0;
  const config::ParallelConfig& parallel = student.config.parallel;
  const ModelShape shape = padded_teacher(student, student.teacher->shape);
  const std::vector<StageSpec> parts =
      parts_of_rank(teacher_parts(student, shape.num_layers), student.placement, pp_rank);
  std::int64_t numbers = buffer_layout(model_parameters(shape, parallel.tp, 0, parts), 0).size;
  const bool last = std::ranges::any_of(parts, [](const StageSpec& part) { return part.output; });
  if (parallel.pp > 1 && last)
    numbers += student.microbatches_per_step * student.config.train.micro_batch_size * student.config.data.seq_length /
               (parallel.cp * (parallel.sp ? parallel.tp : 1)) * shape.hidden;
  return numbers * element_bytes_of(student.config).value;
}

}  // namespace megatron::plan
