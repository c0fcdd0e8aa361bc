#pragma once
#include "app/flags.h"
#include "app/jobs.h"

// The jobs of `megatron data`: app/data/data.cpp lists them, one row each.
namespace megatron::app {

// data_preprocess.cpp
int data_preprocess(const Args& args);
// data_inspect.cpp
int data_info(const Args& args);
int data_cat(const Args& args);
// data_pairs.cpp
int data_merge(const Args& args);
int data_split(const Args& args);
// data_index.cpp
int data_index(const Args& args);
// data_features.cpp
int data_features(const Args& args);
// data_corpus.cpp
int data_filter(const Args& args);
int data_dedup(const Args& args);
int data_overlap(const Args& args);

}  // namespace megatron::app
