#pragma once
#include "app/jobs.h"

namespace megatron::app {

/// `megatron docs schedules --output DIR`: README.md and the pictures of every schedule.
int docs_schedules(const Args& args);

}  // namespace megatron::app
