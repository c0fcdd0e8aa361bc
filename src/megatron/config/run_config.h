#pragma once
#include "megatron/config/checkpoint_config.h"
#include "megatron/config/data_config.h"
#include "megatron/config/log_config.h"
#include "megatron/config/meaning.h"
#include "megatron/config/model_config.h"
#include "megatron/config/optimizer_config.h"
#include "megatron/config/parallel_config.h"
#include "megatron/config/train_config.h"
#include "megatron/config/tuning_config.h"

// Every option of a training run, declared once: field, default, help text, and Megatron-LM's flag where it has one.
// Flags, TOML, --help, docs/config.md and the saved recipe are visitors over `visit` (options.h). Sections with many
// options have headers of their own.
namespace megatron::config {

class FieldCollector;

struct RunConfig {
  ModelConfig model;
  ParallelConfig parallel;
  DataConfig data;
  FimConfig fim;
  LoraConfig lora;
  DpoConfig dpo;
  DistillConfig distill;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  TrainConfig train;
  Fp8Config fp8;
  CheckpointConfig checkpoint;
  GuardConfig guard;
  LogConfig log;

  // Compiled once: hundreds of options would be copied by code of its own in each of forty files.
  RunConfig();
  RunConfig(const RunConfig&);
  RunConfig(RunConfig&&) noexcept;
  RunConfig& operator=(const RunConfig&);
  RunConfig& operator=(RunConfig&&) noexcept;
  ~RunConfig();

  template <class Visitor>
  void visit(Visitor& v);
};

template <class Visitor>
void RunConfig::visit(Visitor& v) {
  v("model", model, "The network.", Affects::Weights);
  v("parallel", parallel, "How ranks share the work.");
  v("data", data, "Text, tokenizer, samples.");
  v("fim", fim, "Fill-in-the-middle, where data.fim_data is on.", Affects::Samples, when("data.fim_data"),
    OnlyInTraining());
  v("lora", lora, "Adapters that are trained in place of the weights, where lora.rank is above 0.", OnlyInTraining());
  v("dpo", dpo, "Training on preferences, where dpo.beta is above 0.", OnlyInTraining());
  v("distill", distill, "A teacher, where distill.teacher names one.", OnlyInTraining());
  v("optimizer", optimizer, "Update rule, precision, clipping, gradient reduction.");
  v("schedule", schedule, "Learning rate and batch size over the run.");
  v("train", train, "Length, batch, precision, evaluation.");
  v("fp8", fp8, "Linear layers in 8 bits, where fp8.format names their numbers.");
  v("checkpoint", checkpoint, "Saving and resuming.", Affects::Nothing);
  v("guard", guard, "NaNs, spikes of the loss, ranks that hang.", OnlyInTraining());
  v("log", log, "What is printed and written.", Affects::Nothing);
}

// Compiled once: hundreds of options would take seconds in every file that reads a command line.
extern template void RunConfig::visit(FieldCollector& v);

}  // namespace megatron::config
