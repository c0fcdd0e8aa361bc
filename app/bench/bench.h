#pragma once
#include <string>
#include <vector>

#include "app/config_file.h"
#include "app/jobs.h"

// The jobs of `megatron bench`: each measures one thing and prints its figures, as JSON with --json.
namespace megatron::app {

int bench_checkpoint(const Args& args);
int bench_comm(const Args& args);
int bench_data(const Args& args);
int bench_generate(const Args& args);
int bench_hardware(const Args& args);
int bench_pipeline(const Args& args);
int bench_scaling(const Args& args);
int bench_step(const Args& args);
int bench_tokenizer(const Args& args);

/// Of at least one value.
double median(std::vector<double> values);

}  // namespace megatron::app
