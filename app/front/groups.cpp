#include "app/bench/bench.h"
#include "app/bench/bench_options.h"
#include "app/bench/pipeline_options.h"
#include "app/bench/scaling_options.h"
#include "app/bench/step_options.h"
#include "app/checkpoint/checkpoint_options.h"
#include "app/checkpoint/interchange_options.h"
#include "app/eval/eval_options.h"
#include "app/eval/predictions.h"
#include "app/front/front.h"
#include "app/jobs.h"

// The groups of jobs that compute, in the order in which help lists them. megatron-torch has the same names.
namespace megatron::app {
namespace {

constexpr char kEval[] = "eval";

void check_bench_generate(const Args& args) {
  const BenchGenerateOptions options = bench_generate_options(args);
  if (options.model.empty()) check_model(options, "bench generate");
}

int scaling(const Args& args) {
  const BenchScalingOptions options = bench_scaling_options(args);
  return options.measure.measured ? run_with_libtorch({"bench", "scaling"}, args, nullptr)
                                  : bench_scaling_prediction(options);
}

}  // namespace

int eval(const Args& args) {
  return dispatch(
      "megatron eval",
      {{"loss", "Loss and perplexity of a text or of tokens, with a confidence interval.", nullptr,
        checked_model<eval_loss_flags, kEval>},
       {"wikitext", "Loss and perplexity of WikiText, per token and per word.", nullptr,
        checked_model<eval_wikitext_flags, kEval>},
       {"lambada", "Accuracy of the last word of passages.", nullptr, checked_model<eval_lambada_flags, kEval>},
       {"choice", "Multiple choice by the likelihood of the answers.", nullptr,
        checked_model<eval_choice_flags, kEval>},
#define TASK(name, id, seq_length, query_length, about)   \
  {#name, "Score of a fine-tuned model: " about, nullptr, \
   [](const Args& words) { check_task_model(eval_task_flags(#name, words), #name); }},
#include "megatron/config/tables/tasks.def"
       {"squad", "Score of a fine-tuned model: squad1 or squad2, as the file is.", nullptr,
        [](const Args& words) { check_task_model(eval_task_flags("squad", words), "squad1"); }},
       {"predictions", "Scores of the predictions of a fine-tuning task.", eval_predictions}},
      args);
}

int bench(const Args& args) {
  return dispatch(
      "megatron bench",
      {{"step", "Training steps on synthetic data: tokens/s, parts, share of the bound.", nullptr,
        checked<bench_step_command>},
       {"pipeline", "Pipeline schedules: measured, simulated, compared.", nullptr, checked<bench_pipeline_command>},
       {"scaling", "The paper's scaling study: predicted for clusters, measured in small.", scaling},
       {"checkpoint", "Saving and loading against the disk; what a save costs training.", nullptr,
        checked<bench_checkpoint_command>},
       {"generate", "Generation with a trained model: tokens/s, share of the bound.", nullptr, check_bench_generate},
       {"comm", "All-reduce between ranks.", nullptr, checked<bench_comm_options>},
       {"hardware", "Rates of this machine, for plan --search and train --layout auto.", nullptr,
        checked<bench_hardware_options>},
       {"data", "Text to tokens, the order of samples, and fetching them.", bench_data},
       {"tokenizer", "Learning, encoding and decoding of byte-level BPE.", bench_tokenizer}},
      args);
}

int checkpoint(const Args& args) {
  return dispatch("megatron checkpoint",
                  {{"info", "Shows what a checkpoint holds.", nullptr, checked<checkpoint_info_flags>},
                   {"verify", "Compares every byte with its checksum.", nullptr, checked<checkpoint_verify_flags>},
                   {"reshard", "Rewrites a checkpoint in other files or another dtype.", nullptr,
                    checked<checkpoint_reshard_flags>},
                   {"diff", "Shows which tensors of two checkpoints differ, and by how much.", nullptr,
                    checked<checkpoint_diff_flags>},
                   {"prune", "Removes old checkpoints.", nullptr, checked<checkpoint_prune_flags>},
                   {"import", "Converts a Hugging Face folder or a Megatron-LM checkpoint.", nullptr,
                    checked<checkpoint_import_flags>},
                   {"export", "Writes weights as a Hugging Face folder.", nullptr, checked<checkpoint_export_flags>}},
                  args);
}

}  // namespace megatron::app
