// Trains with a loss of its own, cross entropy and the z-loss of PaLM (Chowdhery et al. 2022, section 5), and collects
// what is no loss: the entropy of the predictions, by microbatch of each validation.
//   custom_loss RECIPE.toml [--section.key value | --megatron-flag value]…
#include <ATen/ATen.h>

#include <cstdio>
#include <iostream>

#include "megatron/base/error.h"
#include "megatron/config/options.h"
#include "megatron/run/ranks.h"
#include "megatron/run/training.h"

namespace {

using namespace megatron;

// Megatron-LM's forward_step_func and loss_func in one: called on ranks that hold the last stage, whatever the layout.
model::LossSum loss(const model::TransformerStage& stage, at::Tensor x, const model::Batch& batch, bool training) {
  const at::Tensor logits = stage.logits(std::move(x), batch, training).to(at::kFloat);  // [s, b, vocab]
  const at::Tensor labels = batch.labels_bs.t(), mask = batch.loss_mask_bs.t();          // [s, b]
  const at::Tensor z = logits.logsumexp(-1);
  const at::Tensor cross_entropy = z - logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1);
  model::LossSum sum;  // a sum and what it is over: the step divides once, by the count of the whole global batch
  sum.sum = ((cross_entropy + 1e-4 * z * z) * mask).sum();
  sum.count = mask.sum().item<double>();
  if (!training) {
    const at::Tensor log_p = logits.log_softmax(-1);
    sum.non_loss = -(log_p.exp() * log_p).sum(-1).mean();
  }
  return sum;
}

// Megatron-LM's process_non_loss_data_func, after each validation.
void print_entropy(std::int64_t iteration, const std::vector<at::Tensor>& entropies) {
  std::printf("iteration %ld: entropy %.4f over %zu microbatches\n", static_cast<long>(iteration),
              at::stack(entropies).mean().item<double>(), entropies.size());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    config::RunConfig recipe;
    config::parse_recipe_command(recipe, {argv + 1, argv + argc}, "custom_loss RECIPE.toml [OPTION]…");
    return run::run_job_of_ranks([&] {
      return run::train(run::open_training(recipe),
                        {.forward_step = {.loss = loss, .collected = print_entropy}, .stop_on_signals = true});
    });
  } catch (const std::exception& error) {
    return std::cerr << error.what() << "\n", 1;
  }
}
