#include "app/jobs.h"

namespace {

namespace app = megatron::app;

// The jobs of megatron.cpp that need libtorch, and what others leave to it.
const std::vector<app::Job> kJobs = {
    {"train", "", app::train},
    {"pretrain_gpt", "", app::pretrain_gpt},
    {"pretrain_bert", "", app::pretrain_bert},
    {"pretrain_t5", "", app::pretrain_t5},
    {"finetune", "", app::finetune},
    {"eval", "", app::eval},
    {"generate", "", app::generate},
    {"chat", "", app::chat},
    {"serve", "", app::serve},
    {"checkpoint", "", app::checkpoint},
    {"bench", "", app::bench},
    {"operators", "", app::operators},
};

}  // namespace

int main(int argc, char** argv) { app::run_program(kJobs, argc, argv); }
