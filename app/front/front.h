#pragma once
#include <string>

#include "app/eval/eval_options.h"
#include "app/jobs.h"
#include "app/serve/serve_options.h"
#include "megatron/config/model_config.h"
#include "megatron/recipe/forward.h"

// What `megatron` says of the jobs of megatron-torch before it becomes it: help, and what is wrong with words and
// recipe, also where the network is that of a Hugging Face folder's config.json. Other folders, weights and the machine
// are left to megatron-torch, which looks at all once more.
namespace megatron::app {

/// Of `generate`, also what the kind of its model does not do.
void check_generate(const Args& args);
void check_serve(const Args& args);

/// The folder of the files beside the weights of a Hugging Face folder; "" where it has no tokenizer.
std::string companions_of(const std::string& folder);

// Each throws ConfigError, which begins with `job`, where the model in flags.load is a Hugging Face folder's and cannot
// be read, does not do what the job asks of it, or breaks a rule on the ranks that are asked for. Other folders pass.
void check_model(const recipe::ModelFlags& flags, const char* job, recipe::Writes writes = recipe::Writes::Texts);
/// check_model() where the model is known.
void check_model(const recipe::ModelFlags& flags, const config::ModelConfig& model, const char* job,
                 recipe::Writes writes);
/// Of `megatron eval`; `task`: of tasks::task_kind_of().
void check_task_model(const TaskFlags& flags, const std::string& task);

/// The Check of a job whose words `parse` makes the flags of a model that writes texts of.
template <auto parse, const char* job>
void checked_model(const Args& args) {
  check_model(parse(args), job);
}

// The checks of jobs that train.
void check_train(const Args& args);
void check_finetune(const Args& args);
/// `program`: of config::megatron_programs().
void check_pretrain(const std::string& program, const Args& args);

}  // namespace megatron::app
