#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "app/jobs.h"
#include "megatron/config/options.h"
#include "megatron/recipe/model_flags.h"

namespace megatron::app {

/// The options of `megatron serve`.
struct ServeFlags : recipe::ModelFlags {
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string token_file;
  bool without_token = false;
  std::string model_name;
  std::vector<std::string> adapters;
  std::int64_t max_texts = 16, cache_tokens = 0, max_context = 0, max_tokens = 0, prefill_tokens = 256;
  std::string cache_memory;
  bool prefix_cache = true;
  std::int64_t max_queue = 256, max_connections = 512, max_body_bytes = 1 << 20;
  double request_timeout_s = 600, drain_s = 30;

  void visit(auto& v) {
    recipe::ModelFlags::visit(v);
    v("host", host, "Address to listen on.", config::Common());
    v("port", port, "Port to listen on; 0: a free one.", config::Common());
    v("token_file", token_file,
      "File with bearer tokens, one per line; without it MEGATRON_SERVE_TOKEN of the environment.", config::Common());
    v("without_token", without_token, "Let other machines ask without a token.");
    v("model_name", model_name, "Name of the model in requests; empty: the folder's.", config::Common());
    v("adapters", adapters,
      "Low-rank adapters of the model, NAME=FOLDER each (a run's with lora.rank, or PEFT's), which are not merged: a "
      "request has the one that its `model` names.",
      "lora-modules", config::Common());
    v("max_texts", max_texts, "Maximum number of texts that are written at once.", config::Common());
    v("cache_memory", cache_memory,
      "Memory for the keys and values of all texts on all ranks together, as 2GB, in blocks of 64 tokens; empty: "
      "max_texts times the context, in at most a quarter of the free memory; must be given with --device cuda.",
      config::Common());
    v("cache_tokens", cache_tokens,
      "Tokens whose keys and values have room, in place of cache_memory; 0: as that says.");
    v("max_context", max_context, "Maximum tokens of a prompt and its answer; 0: the model's context.");
    v("max_tokens", max_tokens, "Maximum tokens of an answer; 0: what the context leaves.");
    v("prefill_tokens", prefill_tokens,
      "Tokens of a prompt that are read between two steps of the texts under way; prompts that begin alike share keys "
      "and values in units of as many, or the least multiple of it and 64.");
    v("prefix_cache", prefix_cache, "Share keys and values of prompts that begin alike, and keep them when texts end.");
    v("max_queue", max_queue, "Maximum number of texts that wait; half of them may be one client's.");
    v("max_connections", max_connections, "Maximum number of open connections.");
    v("max_body_bytes", max_body_bytes, "Maximum size of a request's body in bytes.");
    v("request_timeout_s", request_timeout_s, "Seconds after which a request is given up.");
    v("drain_s", drain_s, "Seconds that texts under way may take once a stop was asked for.");
  }
};

/// An adapter as --adapters has it.
struct NamedAdapter {
  std::string name, folder;
};
/// Those of --adapters. Throws ConfigError for what is not NAME=FOLDER, and a name that comes twice.
std::vector<NamedAdapter> adapters_of(const ServeFlags& flags);

/// The token that the environment names where no file does; "": none.
std::string token_of_environment();

/// What the words say. Throws HelpRequested, and ConfigError for what is wrong whatever the model is.
ServeFlags serve_flags(const Args& args);

}  // namespace megatron::app
