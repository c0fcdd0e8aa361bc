#include "app/job_help.h"

#include <vector>

namespace megatron::app {
namespace {

struct Row {
  const char* name;    ///< without "megatron"
  const char* writes;  ///< "": nothing but what is printed
  const char* codes;   ///< exit codes besides 0, 1 and 2; 7: 17, s: signals
  std::vector<const char*> examples;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all = {
      {"doctor", "", "", {"megatron doctor", "megatron doctor --operators --json"}},
      {"tokenizer train",
       "tokenizer.json in --output; of unigram tokenizer.model",
       "",
       {"megatron tokenizer train --input text.jsonl --vocab-size 4096 --output tok"}},
      {"tokenizer encode",
       "ids on stdout, or the file of --output",
       "",
       {"megatron tokenizer encode --tokenizer tok --input text.txt",
        "echo hello | megatron tokenizer encode --tokenizer tok --json"}},
      {"tokenizer decode",
       "text on stdout, or the file of --output",
       "",
       {"echo 15339 | megatron tokenizer decode --tokenizer tok"}},
      {"tokenizer info", "", "", {"megatron tokenizer info tok"}},
      {"data preprocess",
       "PREFIX_KEY_document.bin and .idx (with --split-sentences PREFIX_KEY_sentence)",
       "",
       {"megatron data preprocess --input text.jsonl --tokenizer tok --output-prefix data/corpus --append-eod"}},
      {"data info", "", "", {"megatron data info data/corpus_text_document"}},
      {"data filter",
       "the file of --output, and that of --rejected",
       "",
       {"megatron data filter --input text.jsonl --output long.jsonl --min-tokens 128 --tokenizer tok"}},
      {"data dedup",
       "the file of --output, and that of --report",
       "",
       {"megatron data dedup --input text.jsonl --output unique.jsonl --threshold 0.8"}},
      {"data overlap",
       "the files of --output and --report",
       "",
       {"megatron data overlap --input text.jsonl --test test.jsonl",
        "megatron data overlap --input text.jsonl --test test.jsonl --output clean.jsonl"}},
      {"data features",
       "the file of --output",
       "",
       {"megatron data features --task mnli --input train.tsv --tokenizer vocab.txt --output rows.jsonl"}},
      {"data cat",
       "documents on stdout",
       "",
       {"megatron data cat data/corpus_text_document --range 0:3 --tokenizer tok"}},
      {"data merge",
       "PREFIX.bin and .idx of --output-prefix",
       "",
       {"megatron data merge data/a_text_document data/b_text_document --output-prefix data/both"}},
      {"data split",
       "PREFIX_0.bin and .idx, PREFIX_1…, or PREFIX_NAME",
       "",
       {"megatron data split data/corpus_text_document --shares 98,1,1 --output-prefix data/part --names train valid "
        "test"}},
      {"data index",
       "--output/SPLIT_{document,sample,shuffle}_index.npy",
       "",
       {"megatron data index data/corpus_text_document --seq-length 1024 --samples 1000,50,10 --output indices"}},
      {"train",
       "in --train.out: recipe.toml, metrics.jsonl, TensorBoard's event files, checkpoints/, the tokenizer",
       "37",
       {"megatron train configs/gpt_tiny.toml --data-path data/corpus_text_document --tokenizer tok --train.out runs/a",
        "megatron train configs/gpt_tiny.toml --world-size 2 --tp 2 --lr 1e-3 --data-path data/corpus_text_document "
        "--tokenizer tok",
        "torchrun --nproc-per-node 8 --no-python megatron train configs/gpt2_124m.toml --tp 2 --train.dtype bf16 "
        "--device cuda --restart 100"}},
      {"pretrain_gpt",
       "checkpoints in --save, with recipe.toml, metrics.jsonl and the tokenizer",
       "37",
       {"torchrun --nproc-per-node 2 --no-python megatron pretrain_gpt --tensor-model-parallel-size 2 --num-layers 4 "
        "--hidden-size 256 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --micro-batch-size 2 "
        "--train-iters 20 --lr 1e-3 --data-path data/corpus_text_document --vocab-file tok/vocab.json --merge-file "
        "tok/merges.txt --save runs/a --save-interval 10 --load runs/a"}},
      {"pretrain_bert",
       "checkpoints in --save, with recipe.toml, metrics.jsonl and the tokenizer",
       "37",
       {"megatron pretrain_bert --num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 64 "
        "--max-position-embeddings 64 --micro-batch-size 2 --train-iters 20 --lr 1e-3 --data-path "
        "data/corpus_text_sentence --vocab-file vocab.txt"}},
      {"pretrain_t5",
       "checkpoints in --save, with recipe.toml, metrics.jsonl and the tokenizer",
       "37",
       {"megatron pretrain_t5 --encoder-num-layers 2 --decoder-num-layers 2 --hidden-size 64 --num-attention-heads 2 "
        "--encoder-seq-length 64 --decoder-seq-length 32 --max-position-embeddings 64 --micro-batch-size 2 "
        "--train-iters 20 --lr 1e-3 --data-path data/corpus_text_sentence --vocab-file vocab.txt --vocab-extra-ids "
        "100"}},
      {"preprocess_data",
       "PREFIX_KEY_document.bin and .idx (with --split-sentences PREFIX_KEY_sentence)",
       "",
       {"megatron preprocess_data --input text.jsonl --output-prefix data/corpus --tokenizer-type GPT2BPETokenizer "
        "--vocab-file tok/vocab.json --merge-file tok/merges.txt --append-eod --workers 2"}},
      {"sweep",
       "in train.out: lr_LR_batch_N/ for each trial, sweep.json, sweep.svg",
       "37",
       {"megatron sweep --lr 3e-4,1e-3,3e-3 --batch 16,32 -- train configs/llama_tiny.toml --vocab-size 0 --data-path "
        "data/corpus_text_document --tokenizer tok --train.out runs/sweep"}},
      {"run",
       "what the job writes, and train.out/events.jsonl",
       "37s",
       {"megatron run -- train configs/gpt_tiny.toml --data-path data/corpus_text_document --tokenizer tok --train.out "
        "runs/a --save-interval 10",
        "megatron run --max-restarts 20 --min-ranks 2 -- train configs/gpt_tiny.toml --world-size 4 --tp 2 "
        "--parallel.launch processes --data-path data/corpus_text_document --tokenizer tok --train.out runs/a "
        "--save-interval 10 --on-nan rollback"}},
      {"watch", "nothing", "", {"megatron watch runs/a", "megatron watch runs/a runs/b --once"}},
      {"finetune",
       "in --train.out: seed_N/ with weights, metrics, predictions and result.json; results.json, results.md",
       "3",
       {"megatron finetune configs/finetune/mnli.toml --load bert --train-data train.tsv --valid-data dev.tsv",
        "megatron finetune configs/finetune/squad1.toml --load bert --train-data train.json --valid-data dev.json "
        "--seeds 1,2,3 --ensemble"}},
      {"generate",
       "text on stdout",
       "",
       {"megatron generate --load runs/a --prompt \"The \"",
        "megatron generate --load runs/a --prompt \"The \" --temperature 0.8 --top-p 0.9 --json"}},
      {"chat", "the answers on stdout", "", {"megatron chat hf/smollm2 --temperature 0.7"}},
      {"serve",
       "nothing",
       "",
       {"megatron serve runs/a", "megatron serve hf/smollm2 --port 8080 --dtype bf16 --max-texts 32"}},
      {"checkpoint info", "", "4", {"megatron checkpoint info runs/a --tensors"}},
      {"checkpoint verify", "", "4", {"megatron checkpoint verify runs/a"}},
      {"checkpoint reshard",
       "the folder TO",
       "",
       {"megatron checkpoint reshard runs/a copies/a --dtype bf16 --weights-only"}},
      {"checkpoint diff", "", "4", {"megatron checkpoint diff runs/a runs/b --tolerance 1e-6"}},
      {"checkpoint prune",
       "removes checkpoint folders; writes nothing",
       "",
       {"megatron checkpoint prune runs/a --keep-last 2 --dry-run"}},
      {"checkpoint import",
       "the folder of --output",
       "",
       {"megatron checkpoint import --from hf/gpt2 --output runs/gpt2"}},
      {"checkpoint export",
       "the folder or file of --output",
       "",
       {"megatron checkpoint export --load runs/a --output hf/a"}},
      {"plan",
       "nothing, or the files of --draw and --svg",
       "",
       {"megatron plan configs/gpt2_124m.toml --world-size 4 --tp 2",
        "megatron plan configs/gpt_145.6b.toml --search --world-size 1536 --hardware dgx-h100",
        "megatron plan configs/gpt_tiny_pp.toml --draw schedule.svg",
        "megatron plan --megatron-args arguments.txt --program pretrain_gpt"}},
      {"plot",
       "the file of --output",
       "",
       {"megatron plot runs/a runs/b --field loss --smooth 10 --output curves.svg"}},
      {"bench step",
       "nothing, or the file of --trace",
       "",
       {"megatron bench step --model gpt_tiny --seq-length 128 --steps 5 --json"}},
      {"bench pipeline", "", "", {"megatron bench pipeline configs/gpt_tiny_pp.toml --schedules 1f1b zb-h1"}},
      {"bench scaling",
       "nothing, or the file of --svg",
       "",
       {"megatron bench scaling", "megatron bench scaling --measured --most-ranks 2"}},
      {"bench checkpoint",
       "temporary files in --folder, which are removed",
       "",
       {"megatron bench checkpoint --repeats 3"}},
      {"bench generate", "", "", {"megatron bench generate --load runs/a --json"}},
      {"bench comm", "", "", {"megatron bench comm --ranks 2 --json"}},
      {"bench hardware", "the file of --output", "", {"megatron bench hardware --output this_machine.toml --ranks 2"}},
      {"bench data",
       "temporary files, which are removed",
       "",
       {"megatron bench data --input text.jsonl --tokenizer tok"}},
      {"bench tokenizer", "", "", {"megatron bench tokenizer --input text.jsonl --vocab-size 4096"}},
      {"docs config", "the page on stdout", "", {"megatron docs config > docs/config.md"}},
      {"docs megatron-lm", "the page on stdout", "", {"megatron docs megatron-lm > docs/from_megatron_lm.md"}},
      {"docs schedules", "README.md and pictures in --output", "", {"megatron docs schedules --output docs/schedules"}},
      {"version", "", "", {"megatron version"}},
      {"eval loss", "", "", {"megatron eval loss --load runs/a --data README.md --window 1024 --stride 512 --json"}},
      {"eval wikitext", "", "", {"megatron eval wikitext --load runs/a --data wiki.test.tokens --json"}},
      {"eval lambada", "", "", {"megatron eval lambada --load runs/a --data lambada_test.jsonl --json"}},
      {"eval choice", "", "", {"megatron eval choice --load runs/a --data questions.jsonl --json"}},
      {"eval mnli",
       "nothing, or predictions in the folder of --output",
       "",
       {"megatron eval mnli --load runs/mnli/seed_1 --data dev_matched.tsv --output predictions"}},
      {"eval qqp",
       "nothing, or predictions in the folder of --output",
       "",
       {"megatron eval qqp --load runs/qqp/seed_1 --data dev.tsv --output predictions"}},
      {"eval race",
       "nothing, or predictions in the folder of --output",
       "",
       {"megatron eval race --load runs/race/seed_1 --data test/high --output predictions"}},
      {"eval squad",
       "nothing, or predictions in the folder of --output",
       "",
       {"megatron eval squad --load runs/squad/seed_1 --data dev.json --output predictions"}},
      {"eval squad1",
       "nothing, or predictions in the folder of --output",
       "",
       {"megatron eval squad1 --load runs/squad/seed_1 --data dev-v1.1.json --output predictions"}},
      {"eval squad2",
       "nothing, or predictions in the folder of --output",
       "",
       {"megatron eval squad2 --load runs/squad/seed_1 --data dev-v2.0.json --output predictions"}},
      {"eval predictions",
       "",
       "",
       {"megatron eval predictions --task squad2 --data dev-v2.0.json --predictions predictions/predictions.json "
        "--null-odds predictions/null_odds.json"}}};
  return all;
}

}  // namespace

std::string help_ending(const std::string& name) {
  std::string text, codes = "exit codes: 0 done, 1 the run failed, 2 the command or the configuration is wrong";
  for (const Row& row : rows()) {
    if (name != std::string("megatron ") + row.name) continue;
    if (*row.writes != '\0') text += std::string("\nwrites: ") + row.writes + "\n";
    for (const char code : std::string(row.codes))
      codes += code == '3'   ? ", 3 interrupted and saved"
               : code == '7' ? ", 17 ranks compute wrongly"
               : code == 's' ? ", 128 + n ended by signal n (143: SIGTERM)"
                             : ", 4 the check found a difference";
    std::string examples = "\nexamples:\n";
    for (const char* example : row.examples) examples += std::string("  ") + example + "\n";
    return text + (text.empty() ? "\n" : "") + codes + "\n" + examples;
  }
  return "\n" + codes + "\n";
}

}  // namespace megatron::app
