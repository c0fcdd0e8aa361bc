#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "app/docs/docs.h"
#include "megatron/base/error.h"
#include "megatron/config/megatron_flags.h"
#include "megatron/config/options.h"
#include "megatron/config/run_config.h"
#include "megatron/config/value.h"

// docs/from_megatron_lm.md: a head by hand, tables from the declarations that the parser uses.
namespace megatron::app {
namespace {

constexpr const char* kHead = R"(# From Megatron-LM

Written by `megatron docs megatron-lm`. After this page you can run a `pretrain_gpt.py` command line of yours here:
the data, the checkpoint and most of the words stay as they are.

## What to do first

A command line of Megatron-LM

```
torchrun --nproc-per-node 2 pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 4 --hidden-size 256 \
    --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --micro-batch-size 2 --global-batch-size 8 \
    --train-iters 20 --lr 1e-3 --lr-decay-style linear --split 969,30,1 --data-path data/corpus_text_document \
    --tokenizer-type GPT2BPETokenizer --vocab-file tok/vocab.json --merge-file tok/merges.txt --transformer-impl local
```

becomes a recipe and the words that differ from it. The recipe may be empty: every option has a default
(`docs/config.md`). `megatron plan` shows what the words mean before anything runs. Flags of Megatron-LM that are not
supported are named, all at once, each with what to write instead:

```
$ touch empty.toml
$ megatron plan empty.toml --num-layers 4 --tokenizer tok --vocab-file tok/vocab.json --transformer-impl local
this flag of Megatron-LM is not supported.
  got:  --vocab-file
  fix:  leave --vocab-file out; instead: --tokenizer, the folder of vocabulary and merges
this flag of Megatron-LM is not supported.
  got:  --transformer-impl
  fix:  leave --transformer-impl out
```

With these mended it runs, also without torchrun:

```
$ megatron train empty.toml --world-size 2 --tensor-model-parallel-size 2 --num-layers 4 --hidden-size 256 \
    --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --micro-batch-size 2 --global-batch-size 8 \
    --train-iters 20 --lr 1e-3 --lr-decay-style linear --split 969,30,1 --data-path data/corpus_text_document \
    --tokenizer tok --train.out runs/first
```

`runs/first/recipe.toml` is the resolved recipe, every default included: from now on `megatron train
runs/first/recipe.toml` is the whole command.

## What stays, what differs

- Data: `.bin/.idx` pairs are Megatron's, byte for byte, and so is the order of samples for the same seed.
- Ranks: torchrun, mpirun and Slurm work as before; without them `--world-size N` starts N ranks. `--tp`, `--pp` and
  `--sp` are short for Megatron-LM's names.
- Checkpoints: `megatron checkpoint import --from DIR --output DIR` reads Megatron-LM's; `docs/interchange.md`.
- Folders: `--train.out` has recipe, metrics and checkpoints of a run; the same command again resumes from it, without
  `--load`.
- Log lines have Megatron-LM's format, so scripts that parse them work; `metrics.jsonl` has one JSON object per
  iteration, and TensorBoard and W&B get the same under Megatron-LM's tags (docs/logging.md).
- A switch that is on is turned off by `--no-NAME`; `_` and `-` are the same.
- Warm-up and decay are counted in samples, not in iterations: `--lr-warmup-samples`, or `--lr-warmup-fraction`.
- Not here: mixture of experts, context parallelism, FP8 and FP4, FSDP, CUDA graphs, Mamba and hybrid models,
  multi-modal models, retrieval, multi-token prediction, latent attention, reinforcement learning. Their flags are
  refused like any unknown word, with exit code 2, before anything is written.
)";

/// Names that only this program has: Megatron-LM's parser does not know them.
constexpr std::array kOwnNames = {"device",
                                  "dp",
                                  "launch",
                                  "matmul-precision",
                                  "pp",
                                  "pp-communication",
                                  "pp-layout",
                                  "pp-schedule",
                                  "schedule",
                                  "sp",
                                  "threads-per-rank",
                                  "tokenizer",
                                  "tp",
                                  "vpp",
                                  "world-size"};

/// What an option that has Megatron-LM's name means here and did not mean there.
struct Difference {
  const char *path, *text;
};
constexpr Difference kDifferences[] = {
    {"model.max_position_embeddings", "not required"},
    {"model.vocab_size", "not required: the tokenizer's"},
    {"optimizer.overlap_grad_reduce", "on by default; `--no-overlap-grad-reduce` turns it off"},
    {"optimizer.overlap_param_gather", "on by default, where `--use-distributed-optimizer` is given"},
    {"optimizer.data_parallel_sharding_strategy", "without `optim_grads_params`"},
    {"schedule.lr_decay_style", "default there: linear"},
    {"schedule.rampup_batch_size", "the three numbers are joined by commas or separated by spaces"},
    {"train.eval_iters", "default there: 100"},
    {"train.recompute", "`none` is a value; there the option is left out"},
    {"checkpoint.load", "a run's folder, one checkpoint, a Hugging Face folder or Megatron-LM's checkpoint"},
    {"checkpoint.save", "not required: `checkpoints` in `--train.out`, from which the same command resumes"},
    {"checkpoint.async_save", "on by default; `--no-async-save` turns it off"},
    {"data.tokenizer", "any tokenizer: a folder or file, whatever its kind"},
    {"data.tokenizer_type", "not required: found out from the file"},
    {"log.interval", "default there: 100"},
    {"log.throughput", "on by default"},
    {"log.timing_barrier", "off by default; on there"},
    {"log.profile", "writes timelines in Chrome's trace format; nothing has to be attached"},
    {"log.profile_ranks", "their pipelines are measured"},
    {"log.tensorboard_dir", "not required: `--train.out`"},
    {"log.validation_ppl_to_tensorboard", "on by default"},
    {"log.memory_to_tensorboard", "on by default; of the host"},
    {"log.timers_to_tensorboard", "on by default"},
    {"log.wandb_project", "an offline run, which `wandb sync` uploads"},
    {"log.wandb_exp_name", "not required"},
};

std::string cell(const std::string& text) {  // a bar would end the cell
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string options_table() {
  std::string out =
      "| Megatron-LM | recipe | default here | difference |\n"
      "|---|---|---|---|\n";
  config::RunConfig run;
  for (const config::Field& field : config::fields_of(run).fields) {
    std::string flags;
    for (const std::string& alias : field.aliases)
      if (std::ranges::find(kOwnNames, alias) == kOwnNames.end())
        flags += (flags.empty() ? "`--" : ", `--") + alias + "`";
    if (flags.empty()) continue;
    const auto* const difference = std::ranges::find(kDifferences, field.path, &Difference::path);
    const std::string value = config::plain_value(field.value);
    out += "| " + flags + " | `" + field.path + "` | " + (value.empty() ? "none" : "`" + cell(value) + "`") + " | " +
           (difference == std::end(kDifferences) ? "" : difference->text) + " |\n";
  }
  return out;
}

std::string switches_table() {
  std::string out =
      "| Megatron-LM | stands for |\n"
      "|---|---|\n";
  for (const config::MegatronSwitch& entry : config::megatron_switches()) {
    std::string words;
    for (const auto& [option, value] : entry.settings)
      words += concat(words.empty() ? "`" : " ", "--", option, " ", value);
    out += concat("| `--", entry.name, "` | ", words, "` |\n");
  }
  return out;
}

std::string flags_table() {
  std::string out =
      "| Megatron-LM | write instead |\n"
      "|---|---|\n";
  std::vector<config::MegatronFlag> flags(config::megatron_flags().begin(), config::megatron_flags().end());
  std::ranges::sort(flags, {}, [](const config::MegatronFlag& flag) { return std::string(flag.name); });
  for (const config::MegatronFlag& flag : flags) out += concat("| `--", flag.name, "` | ", cell(flag.fix), " |\n");
  return out;
}

struct NoOptions {
  void visit(auto&) {}
};

}  // namespace

int docs_megatron_lm(const Args& args) {
  NoOptions none;
  const auto words = config::parse_command_line(none, args, "megatron docs megatron-lm");
  if (!words.empty())
    throw ConfigError(rule_got_fix("docs megatron-lm takes no words.", words[0], concat("leave '", words[0], "' out")));
  std::printf(
      "%s\n## Accepted under Megatron-LM's name\n\n%s\n## Switches that stand for other options\n\n%s\n"
      "## Refused, with what to write instead\n\n"
      "The program says the same when it meets the flag, exits with 2 and writes nothing.\n\n%s",
      kHead, options_table().c_str(), switches_table().c_str(), flags_table().c_str());
  return kDone;
}

}  // namespace megatron::app
