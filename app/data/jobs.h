#pragma once
#include "app/flags.h"
#include "app/jobs.h"

// The jobs of `megatron data`: app/data/data.cpp lists them, one row each.
namespace megatron::app {

// preprocess.cpp
int data_preprocess(const Args& args);
// inspect.cpp
int data_info(const Args& args);
int data_cat(const Args& args);
// pairs.cpp
int data_merge(const Args& args);
int data_split(const Args& args);
// index.cpp
int data_index(const Args& args);
// features.cpp
int data_features(const Args& args);
// corpus.cpp
int data_filter(const Args& args);
int data_dedup(const Args& args);
int data_overlap(const Args& args);

}  // namespace megatron::app
