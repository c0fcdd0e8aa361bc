#include "app/jobs.h"

namespace {

namespace app = megatron::app;

// The order is the one in which a new user meets them.
const std::vector<app::Job> kJobs = {
    {"doctor", "Shows what this machine offers.", app::doctor},
    {"tokenizer", "Trains tokenizers; converts text to ids and back.", app::tokenizer},
    {"data", "Filters and tokenizes text; shows token files.", app::data},
    {"train", "Trains a model from a recipe; resumes by itself.",
     [](const app::Args& args) { return app::run_training("train", args); }},
    {"pretrain_gpt", "Trains with the arguments of Megatron-LM's pretrain_gpt.py.",
     [](const app::Args& args) { return app::run_training("pretrain_gpt", args); }},
    {"pretrain_bert", "Trains with the arguments of Megatron-LM's pretrain_bert.py.",
     [](const app::Args& args) { return app::run_training("pretrain_bert", args); }},
    {"pretrain_t5", "Trains with the arguments of Megatron-LM's pretrain_t5.py.",
     [](const app::Args& args) { return app::run_training("pretrain_t5", args); }},
    {"preprocess_data", "Tokenizes with the arguments of its preprocess_data.py.", app::preprocess_data},
    {"run", "Runs a job that trains and starts it again when it fails.", app::run_supervised},
    {"sweep", "Tries learning rates and batch sizes; the worse ones end early.", app::sweep},
    {"watch", "Shows runs in the terminal while they train.", app::watch},
    {"finetune", "Fine-tunes a model on a task; seeds, ensembles, predictions.", nullptr},
    {"eval", "Evaluates a model: loss, perplexity, WikiText, LAMBADA, tasks.", nullptr},
    {"generate", "Generates text from prompts.", nullptr},
    {"chat", "Talks with a chat model in the terminal.", nullptr},
    {"serve", "Answers requests over HTTP as OpenAI's API has them.", nullptr},
    {"checkpoint", "Inspects, verifies, converts, imports and exports checkpoints.", nullptr},
    {"plan", "Shows groups, schedule, memory and FLOPs of a recipe without running it.", app::plan},
    {"plot", "Draws the curves of several runs.", app::plot},
    {"bench", "Benchmarks on this machine.", nullptr},
    {"docs", "Prints the generated parts of docs/.", app::docs},
    {"version", "Prints the versions of the program and of libtorch; also --version.", app::version},
};

}  // namespace

int main(int argc, char** argv) { app::run_program(kJobs, argc, argv); }
