#pragma once
#include <optional>

#include "megatron/plan/rules.h"
#include "megatron/train/engine.h"

// Distillation (Hinton et al. 2015): a student learns the probabilities that a teacher gives each token, besides the
// tokens themselves. With P and Q the distributions of student and teacher, their logits divided by the temperature T:
//
//   loss of a token = (1 - alpha) cross entropy + alpha T^2 KL(Q || P)
namespace megatron::train {

/// The loss of distillation in place of the model's, with the teacher that the run's section distill names: loaded here
/// by each rank, its slices of its stages, split over tp and pp as the student is. Before each pass of a pipeline the
/// teacher's stages compute all microbatches; what goes into its last stage stays until the student's last stage has
/// had the microbatch. A validation's loss is the model's own. All logits of a microbatch, the student's and the
/// teacher's, exist at once on every rank of tp that holds the last stage. Keeps a reference to the engine. Collective
/// over the world. What a rank cannot read of the teacher all throw, as comm::run_together().
ForwardStep distillation_step(const plan::ResolvedRun& run, Engine& engine);

/// The model that distill.teacher names, of any format; nothing where it names none. Reads its sizes; throws
/// ConfigError where they are not there.
std::optional<plan::TeacherNetwork> teacher_of(const config::RunConfig& config);

/// Throws ConfigError where the teacher is not there, or not a model of the student's tokens. Reads no weights.
void check_teacher(const plan::ResolvedRun& run);

}  // namespace megatron::train
