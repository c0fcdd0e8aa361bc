#pragma once
#include <string>

#include "app/jobs.h"

// What `megatron` says of the jobs of megatron-torch before it becomes it: help, and what is wrong with words and
// recipe. What lies in files of other runs and models, beyond their kind, and the machine are left to megatron-torch,
// which looks at all once more.
namespace megatron::app {

/// Of `generate`, also what the kind of its model does not do.
void check_generate(const Args& args);

// The checks of jobs that train.
void check_train(const Args& args);
void check_finetune(const Args& args);
/// `program`: of config::megatron_programs().
void check_pretrain(const std::string& program, const Args& args);

}  // namespace megatron::app
