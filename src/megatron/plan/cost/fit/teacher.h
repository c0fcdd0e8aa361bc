#pragma once
#include <cstdint>
#include <vector>

#include "megatron/plan/rules.h"

// What the teacher of a distillation (distill.teacher) is on the ranks of its student.
namespace megatron::plan {

/// The stages of a teacher of so many layers: as many as the student has, on the same ranks, of layers in equal
/// numbers, the first stages with one more.
std::vector<StageSpec> teacher_parts(const ResolvedRun& student, std::int64_t layers);

/// Its sizes, with the rows that pad the vocabulary as the student's do. `teacher`: those that its folder describes.
ModelShape padded_teacher(const ResolvedRun& student, ModelShape teacher);

/// Throws ConfigError where such a model cannot teach `student`.
void check_teacher_network(const ResolvedRun& student, const TeacherNetwork& teacher);

/// Bytes that a rank of `student` at `pp_rank` holds of its teacher: its slices of the teacher's stages and, where it
/// holds the last stage of a pipeline, what goes into that stage of all microbatches of a step. 0 where the run has no
/// teacher, or one that is not known. memory_plan() asks this, and so all who count what a rank holds.
std::int64_t teacher_bytes(const ResolvedRun& student, int pp_rank);

}  // namespace megatron::plan
