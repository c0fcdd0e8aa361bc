#pragma once
#include "app/jobs.h"

namespace megatron::app {

/// `megatron eval predictions`, which needs no model.
int eval_predictions(const Args& args);

}  // namespace megatron::app
