#include "megatron/plan/cost/fit/teacher.h"

#include <algorithm>
#include <cstddef>
#include <utility>

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

std::int64_t teacher_bytes(const ResolvedRun& student, const ModelShape& teacher, int pp_rank) {
  const config::ParallelConfig& parallel = student.config.parallel;
  const ModelShape shape = padded_teacher(student, teacher);
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
