#pragma once
#include <string>
#include <vector>

#include "app/jobs.h"

// The jobs of `megatron bench`: each measures one thing and prints its figures, as JSON with --json.
namespace megatron::app {

int bench_checkpoint(const Args& args);
int bench_comm(const Args& args);
int bench_data(const Args& args);
int bench_generate(const Args& args);
int bench_pipeline(const Args& args);
int bench_scaling(const Args& args);
int bench_step(const Args& args);
int bench_tokenizer(const Args& args);

/// Of at least one value.
double median(std::vector<double> values);

/// The TOML file that a flag names: a path, or FOLDER/NAME.toml of the working folder, of the source tree that the
/// program was built in (build/megatron), or of share/megatron where it is installed (bin/megatron). Throws ConfigError
/// where there is none. `folder`: "configs".
std::string config_file(const std::string& name, const std::string& folder, const std::string& flag);

}  // namespace megatron::app
