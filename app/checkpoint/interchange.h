#pragma once
#include "app/jobs.h"

namespace megatron::app {

/// Jobs of `megatron checkpoint`.
int checkpoint_import(const Args& args);
int checkpoint_export(const Args& args);

}  // namespace megatron::app
