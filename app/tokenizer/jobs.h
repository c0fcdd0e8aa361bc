#pragma once
#include "app/flags.h"
#include "app/jobs.h"

// The jobs of `megatron tokenizer`: app/tokenizer/tokenizer.cpp lists them, one row each.
namespace megatron::app {

// codes.cpp
int tokenizer_encode(const Args& args);
int tokenizer_decode(const Args& args);
// info.cpp
int tokenizer_info(const Args& args);
// train.cpp
int tokenizer_train(const Args& args);

}  // namespace megatron::app
