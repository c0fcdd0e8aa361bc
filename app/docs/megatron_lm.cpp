#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "app/docs/docs.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/config/megatron_flags.h"
#include "megatron/config/options.h"
#include "megatron/config/run_config.h"
#include "megatron/config/value.h"

// docs/from_megatron_lm.md: a head by hand, tables from the declarations that the parser uses.
namespace megatron::app {
namespace {

constexpr const char* kHead = R"(# From Megatron-LM

Written by `megatron docs megatron-lm`. After this page your launch scripts run here: the command line, the data, the
tokenizer's files and the checkpoint's folder stay as they are.

## Keep the command

A launch script of Megatron-LM

```
torchrun --nproc-per-node 2 pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 4 --hidden-size 256 \
    --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --micro-batch-size 2 --global-batch-size 8 \
    --train-iters 20 --lr 1e-3 --lr-decay-style linear --split 969,30,1 --data-path data/corpus_text_document \
    --tokenizer-type GPT2BPETokenizer --vocab-file tok/vocab.json --merge-file tok/merges.txt --transformer-impl local \
    --save runs/first --save-interval 10 --load runs/first
```

needs one other path: `share/megatron/shims/pretrain_gpt.py` of the installation (`shims/` of the sources) takes the
place of Megatron-LM's script. It runs `megatron pretrain_gpt` with the same words, which also works by itself and under
`torchrun --no-python`, mpirun and Slurm. `pretrain_bert.py`, `pretrain_t5.py` and `preprocess_data.py` are there too.

- Every default is Megatron-LM's, not that of a recipe: linear decay, logs every 100 iterations, dropout 0.1.
- Flags that change no result here (kernels, communication, logs) are named in one line at the start.
- Flags that ask for what is not here are refused before anything is written, in one error that names them all, with
  exit code 2.
- `--save` is the folder of checkpoints, `recipe.toml` and `metrics.jsonl`; without it no checkpoint is saved, and the
  other files are in `runs/pretrain_gpt`. A `--load` without checkpoint begins from scratch, with a warning.
- Without a GPU the ranks compute on the CPU, whatever `--distributed-backend` says.
- Options of this program may stand among the words by their whole name: `--train.out DIR`, `--parallel.world_size 2`.
  So may the short names of the layout, which errors give as a fix: `--tp`, `--pp`, `--vpp`, `--sp`, `--dp`,
  `--world-size`, `--schedule`.
- The last of equal words holds, so a script is tried small by words behind its own. This runs BERT 340M's on four
  ranks of a machine without GPU, data or vocabulary (a T5 takes `--encoder-num-layers` and `--decoder-num-layers`):

```
megatron pretrain_bert ARGUMENTS… --hidden-size 64 --num-attention-heads 8 --num-layers 4 --train-iters 4 \
    --micro-batch-size 1 --global-batch-size 8 --mock-data --tokenizer-type NullTokenizer --vocab-size 600 \
    --tp 2 --pp 2 --world-size 4 --log-interval 2 --eval-iters 1 --save runs/small --load runs/small
```

`megatron plan` shows what such a command means, before there are data, tokenizer or GPUs: its recipe, what each word
stands for, what is ignored and why. The file has the words as a shell does; the first may be the number of ranks.

```
$ cat arguments.txt
WORLD_SIZE=2 --num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128
--micro-batch-size 2 --train-iters 20 --lr 1e-3 --lr-warmup-iters 2 --transformer-impl local
$ megatron plan --megatron-args arguments.txt --program pretrain_gpt
…
# What stands for options:
#   --num-layers 4  ->  model.num_layers = 4
…
#   --lr-warmup-iters 2  ->  schedule.lr_warmup_samples = 8
# What is ignored, and why:
#   --transformer-impl local: kernels
```

What it prints is a recipe: `megatron train` runs it, and the rest of this documentation applies to it.

A YAML configuration (`--yaml-cfg FILE`) takes the place of the words, as there: keys by their names in Python, those of
TransformerConfig in `language_model`, those of ModelParallelConfig in `model_parallel`. Keys that are not known, given
twice or asked for what is not here are refused by name; `null` and keys that are left out have the parser's default.
With YAML, `activation_func: gelu` is the exact function, and gradients of bf16 are summed in fp32.

With `--inprocess-restart` on the command line (not in YAML) ranks are started again when one dies or hangs, from the
newest whole checkpoint, as `megatron run` does it ([supervise.md](supervise.md)), also under torchrun, MPI and Slurm:
up to 100 times, or once less than `--inprocess-max-iterations`. There a process stays and runs its function again; here
a process supervises its rank, and starts it again as another.

## What stays, what differs

- Data: `.bin/.idx` pairs are Megatron's, byte for byte, and so is the order of samples for the same seed.
- `--dataloader-type cyclic` draws each pass over the samples in the order of `torch.randperm`, seeded with the pass's
  number: Megatron-LM's on one data-parallel rank. There more ranks shuffle a share each, so that the order follows the
  layout; with `--no-data-sharding` they take the samples of that one order, as here, where micro batch x ranks divides
  the number of samples.
- Ranks: torchrun, mpirun and Slurm work as before; without them `--parallel.world_size N` starts N ranks.
- Checkpoints: `--load` resumes from Megatron-LM's of the formats torch_dist and torch; `docs/interchange.md`. With
  `--ckpt-step N` a run begins at that iteration once: started again it resumes from what it has saved since, where
  Megatron-LM goes back to N each time.
- `--init-method-xavier-uniform`: the bound is that of whole matrices, there of a rank's part. In the Megatron-LM of
  August 2026 the flag ends the program.
- Loss: the mean over all tokens of a global batch, as with `--calculate-per-token-loss`. Without that flag Megatron-LM
  takes the mean of the microbatches' means, which differs where they have different numbers of tokens in the loss.
- Padding: rows of the embedding beyond the tokenizer's tokens never take part in the softmax.
- Log lines have Megatron-LM's format, so scripts that parse them work; `metrics.jsonl` has one JSON object per
  iteration.
- Experts: nothing is dropped without a capacity, which is each sequence's by itself, as is the auxiliary loss
  (`seq_aux_loss`; with `aux_loss` the same as theirs where a microbatch is one sequence), so that no result depends on
  the microbatch.
- Context parallelism: `--cp-comm-type` changes no result here, and is one word for all layers.
- `--fp8-param-gather` changes nothing: weights are gathered in `--train.dtype` and rounded to 8 bits where they are
  used, there from the float32 master.
- FP8: `--fp8-format` with `--fp8-recipe delayed`, `tensorwise`, `blockwise` or `mxfp8`. Delayed scales follow from the
  magnitudes of whole steps, there from those of microbatches; blocks of tokens are of one sequence, there of the
  microbatch's. Blocks on a GPU are of E4M3 alone ([performance_guide.md](performance_guide.md#fp8)).
- Not here: context parallelism in levels, other recipes of FP8, FP4, FSDP, CUDA graphs, Mamba and hybrid models,
  multi-modal models, retrieval, reinforcement learning.
)";

constexpr const char* kRecipes = R"(
## With a recipe

`megatron train RECIPE` takes most of Megatron-LM's names too, with the defaults of `docs/config.md`: the recipe holds
what stays, the words what differs. There a switch that is on is turned off by `--no-NAME`, `_` and `-` are the same,
warm-up and decay are counted in samples, and the same command resumes without `--load`. Flags that are no option are
named, all at once, each with what to write instead:

```
$ touch empty.toml
$ megatron plan empty.toml --num-layers 4 --tokenizer tok --vocab-file tok/vocab.json --transformer-impl local
this flag of Megatron-LM is not supported.
  got:  --vocab-file
  fix:  leave --vocab-file out; instead: --tokenizer, the file or its folder; of a vocabulary with merges VOCAB,MERGES
this flag of Megatron-LM is not supported.
  got:  --transformer-impl
  fix:  leave --transformer-impl out; it changes no result (kernels)
```
)";

/// Names that only this program has: Megatron-LM's parser does not know them.
constexpr std::array kOwnNames = {"cp",
                                  "device",
                                  "dp",
                                  "ep",
                                  "etp",
                                  "heartbeat-s",
                                  "launch",
                                  "matmul-precision",
                                  "on-nan",
                                  "on-spike",
                                  "pp",
                                  "pp-communication",
                                  "pp-layout",
                                  "pp-schedule",
                                  "rerun-interval",
                                  "schedule",
                                  "sp",
                                  "spike-factor",
                                  "spike-window",
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
    {"optimizer.data_parallel_sharding_strategy", "default there, with `--use-megatron-fsdp`: optim_grads_params"},
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

std::string advice_table() {
  std::string out =
      "| Megatron-LM | write instead |\n"
      "|---|---|\n";
  for (const config::MegatronAdvice& entry : config::megatron_advice())
    out += concat("| `--", entry.name, "` | ", cell(entry.fix), " |\n");
  return out;
}

std::string names_of(const config::MegatronFlag& flag) {
  std::string names;
  for (const std::string& name : flag.names) names += (names.empty() ? "`--" : ", `--") + name + "`";
  return names;
}

/// The flags that stand for options.
std::string mapped_table() {
  std::string out =
      "| flag | default | options of a recipe |\n"
      "|---|---|---|\n";
  for (const config::MegatronFlag& flag : config::megatron_flags()) {
    if (flag.use != config::FlagUse::Maps) continue;
    std::string options;
    for (const std::string& path : config::mapped_paths(flag)) options += (options.empty() ? "`" : ", `") + path + "`";
    const char* const none = flag.kind == config::FlagKind::Switch ? "off" : "none";
    out += "| " + names_of(flag) + " | " + (flag.default_value.empty() ? none : "`" + cell(flag.default_value) + "`") +
           " | " + options + " |\n";
  }
  return out;
}

/// The flags of one use, together where they have one reason.
std::string reasons_table(config::FlagUse use, const char* title) {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const config::MegatronFlag& flag : config::megatron_flags()) {
    if (flag.use != use) continue;
    const std::string but = flag.harmless.empty() ? "" : " (but " + flag.harmless + ")";
    auto row = std::ranges::find(rows, flag.text, &std::pair<std::string, std::string>::first);
    if (row == rows.end()) row = rows.insert(row, {flag.text, ""});
    row->second += (row->second.empty() ? "" : ", ") + names_of(flag) + but;
  }
  std::string out = concat("| ", title, " | flags |\n|---|---|\n");
  for (const auto& [reason, flags] : rows) out += "| " + cell(reason) + " | " + flags + " |\n";
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
  const auto section = [](const std::string& head, const std::string& table) { print("\n{}\n\n{}", head, table); };
  print_text(kHead);
  section("## Flags that stand for options", mapped_table());
  section("## Flags that are accepted and ignored", reasons_table(config::FlagUse::Ignored, "why"));
  section(
      "## Flags that need what is not here\n\n"
      "Refused, but with their default or with the value in parentheses, which ask for nothing.",
      reasons_table(config::FlagUse::Missing, "what is missing"));
  section("## Flags that are refused", reasons_table(config::FlagUse::Refused, "what it does"));
  section("## Flags that are gone from Megatron-LM", reasons_table(config::FlagUse::Removed, "what to write instead"));
  print_text(kRecipes);
  section("### Accepted under Megatron-LM's name", options_table());
  section("### Switches that stand for other options", switches_table());
  section(
      "### Refused, with what to write instead\n\n"
      "The program says the same when it meets the flag, exits with 2 and writes nothing. Other flags of Megatron-LM "
      "are refused with the reason of the tables above.",
      advice_table());
  return kDone;
}

}  // namespace megatron::app
