#pragma once
#include "app/jobs.h"

namespace megatron::app {

/// `megatron docs schedules --output DIR`: README.md and the pictures of every schedule.
int docs_schedules(const Args& args);

/// `megatron docs megatron-lm`: Megatron-LM's options and this program's, as docs/from_megatron_lm.md.
int docs_megatron_lm(const Args& args);

}  // namespace megatron::app
