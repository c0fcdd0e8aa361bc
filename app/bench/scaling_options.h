#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "app/jobs.h"
#include "megatron/config/options.h"

namespace megatron::app {

struct ScalingPredictOptions {
  std::string hardware = "dgx2h";
  std::vector<std::string> recipes;
  int world_size = 0;
  std::string dtype = "bf16";

  void visit(auto& v) {
    v("hardware", hardware, "Cluster: a path, or the name of a file in configs/hardware/ without .toml.", "hardware");
    v("recipes", recipes,
      "Recipes to predict: paths, or names of files in configs/ without .toml. One that leaves its vocabulary to a "
      "tokenizer has GPT-2's, 50257.",
      "recipes");
    v("world_size", world_size, "Ranks per recipe; 0: the recipe's.", "world-size");
    v("dtype", dtype, "Data type of each recipe's parameters and activations.", "dtype",
      config::Choices({"fp32", "fp64", "bf16", "fp16"}));
  }
};

struct ScalingMeasureOptions {
  bool measured = false;
  int most_ranks = 4;
  std::int64_t steps = 3, warmup = 1, rounds = 2, width = 256, seq_length = 128, samples = 4;

  void visit(auto& v) {
    v("measured", measured, "Train small models on this machine, one thread per rank.", "measured");
    v("most_ranks", most_ranks, "Maximum number of ranks: 1, 2 or 4.", "most-ranks");
    v("steps", steps, "Timed steps per round.", "steps");
    v("warmup", warmup, "Warm-up steps before them.", "warmup");
    v("rounds", rounds, "Rounds over all runs, so that a busy machine slows each of them.", "rounds");
    v("width", width, "Hidden size of the model on one rank, a multiple of 16; others are 5/4 and 3/2 of it.", "width");
    v("seq_length", seq_length, "Tokens per sample.", "seq-length");
    v("samples", samples, "Samples per step and model copy.", "samples");
  }
};

struct ScalingOutputOptions {
  bool json = false;
  std::string svg;

  void visit(auto& v) {
    v("json", json, "Print one JSON object on stdout instead of tables.", "json");
    v("svg", svg, "SVG file to draw the figures into.", "svg");
  }
};

/// The options of `megatron bench scaling`.
struct BenchScalingOptions {
  ScalingPredictOptions predict;
  ScalingMeasureOptions measure;
  ScalingOutputOptions output;

  void visit(auto& v) {
    v("predict", predict, "Prediction by the cost model.");
    v("measure", measure, "Measurement on this machine.");
    v("output", output, "What is written.");
  }
};

/// Makes the folder of --svg.
void make_chart_folder(const ScalingOutputOptions& output);

/// What the words say. Throws HelpRequested, and ConfigError for what is wrong with them.
BenchScalingOptions bench_scaling_options(const Args& args);

}  // namespace megatron::app
