#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/config/meaning.h"

// The options of run_config.h of tuning: which adapters a run trains in place of the weights, and on what preferences.
namespace megatron::config {

/// Low-rank adapters (Hu et al. 2021): y = W x + scale B A x, where A and B alone are trained; with dora (Liu et al.
/// 2024) y = m / |W + scale B A| times that, with a norm and a trained m per output.
struct LoraConfig {
  std::int64_t rank = 0;
  double alpha = 8;
  double dropout = 0;
  std::vector<std::string> targets = {"all-linear"};
  bool rslora = false, dora = false;
  std::string base;

  void visit(auto& v) {
    v("rank", rank, "Rank of the adapters of linear layers, which are trained alone; 0: the weights are trained.",
      Affects::Weights, OnlyInTraining());
    v("alpha", alpha, "Scale of the adapters: alpha / rank multiplies B A.", Affects::Weights, when("lora.rank"),
      OnlyInTraining());
    v("dropout", dropout, "Dropout probability of the adapters' input.", when("lora.rank"), OnlyInTraining());
    v("targets", targets, "Linear layers that get adapters, by PEFT's names; all-linear: every one.", Affects::Weights,
      when("lora.rank"), OnlyInTraining(),
      Choices({"all-linear", "q_proj", "q_gate_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
               "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"}));
    v("rslora", rslora, "Scale the adapters by alpha / sqrt(rank) (Kalajdzievski 2023).", Affects::Weights,
      when("lora.rank"), OnlyInTraining());
    v("dora", dora,
      "Train a magnitude of each output too: rows of W + scale B A are brought to that length (DoRA, Liu et al. 2024).",
      Affects::Weights, when("lora.rank"), OnlyInTraining());
    v("base", base,
      "Folder of the weights that stay as they are, of any kind that can be loaded; empty: as train.seed draws them.",
      when("lora.rank"), OnlyInTraining());
  }
};

/// Direct preference optimization (Rafailov et al. 2023): the loss of a pair of answers to one prompt.
struct DpoConfig {
  double beta = 0;
  double label_smoothing = 0;

  void visit(auto& v) {
    v("beta", beta,
      "Train on preferences with this beta: paths are JSONL files of {\"prompt\": …, \"chosen\": …, \"rejected\": …}, "
      "and batches count texts, two per pair; 0: no preferences.",
      Affects::Samples, OnlyInTraining());
    v("label_smoothing", label_smoothing, "Share of pairs that are taken to be the wrong way round.", when("dpo.beta"),
      OnlyInTraining());
  }
};

/// Distillation (Hinton et al. 2015): a teacher's probabilities of each token are learned too.
struct DistillConfig {
  std::string teacher;
  double alpha = 0.5;
  double temperature = 1;

  void visit(auto& v) {
    v("teacher", teacher,
      "Folder of the model whose probabilities are learned, of any kind that can be loaded; empty: none.",
      OnlyInTraining());
    v("alpha", alpha, "Share of the teacher in the loss; the tokens themselves have the rest.", when("distill.teacher"),
      OnlyInTraining());
    v("temperature", temperature, "What both models' logits are divided by where they are compared.",
      when("distill.teacher"), OnlyInTraining());
  }
};

}  // namespace megatron::config
