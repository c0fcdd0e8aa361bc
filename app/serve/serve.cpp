#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "app/flags.h"
#include "app/generate/chat_template.h"
#include "app/jobs.h"
#include "app/print.h"
#include "app/serve/run_pictures.h"
#include "app/serve/serve_options.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/machine/machine_memory.h"
#include "megatron/base/progress.h"
#include "megatron/base/stack_frames.h"
#include "megatron/base/text/printable.h"
#include "megatron/config/options.h"
#include "megatron/generate/generate.h"
#include "megatron/generate/serving/embedder.h"
#include "megatron/generate/serving/engine.h"
#include "megatron/interchange/hugging_face/companions.h"
#include "megatron/interchange/hugging_face/pooling.h"
#include "megatron/interchange/weights.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/cost/kv_cache.h"
#include "megatron/run/kept_adapters.h"
#include "megatron/run/memory_check.h"
#include "megatron/run/ranks.h"
#include "megatron/run/stop.h"
#include "megatron/run/trained_model.h"
#include "megatron/serve/service.h"
#include "megatron/train/engine.h"

namespace megatron::app {
namespace {

std::vector<std::string> tokens_of(const ServeFlags& flags) {
  std::vector<std::string> tokens;
  if (!flags.token_file.empty()) {
    std::istringstream file(read_file(flags.token_file));
    for (std::string line; std::getline(file, line);) {
      while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
      if (!line.empty()) tokens.push_back(line);
    }
    if (tokens.empty())
      throw ConfigError(rule_got_fix("serve: --token-file must have a token on a line.", flags.token_file + ": none",
                                     "write one into it"));
    return tokens;
  }
  if (std::string token = token_of_environment(); !token.empty()) tokens.push_back(std::move(token));
  return tokens;
}

/// Null where the folder has none.
std::optional<text::ChatTemplate> chat_of(const ServeFlags& flags) {
  try {
    return chat_template_of(flags);
  } catch (const ConfigError& error) {
    write_line(stderr, concat("without /v1/chat/completions: ", first_line_of(error.what())));
    return std::nullopt;
  }
}

/// What is served, before any weight is read.
struct Plan {
  ServeFlags flags;
  run::TrainedModel model;
  std::vector<std::string> adapters = {};  ///< their names
  std::vector<std::string> tokens = {};
  std::optional<text::ChatTemplate> chat = {};
  std::int64_t positions = 0;  ///< of the longest text that --max-context allows: by them longrope chooses its factors
  std::int64_t context = 0;    ///< of the longest text
  plan::CachePool cache = {};
  std::optional<interchange::TextPooling> pooling = {};  ///< of an encoder, which makes vectors and writes no texts
};

std::string name_of(const ServeFlags& flags) {
  if (!flags.model_name.empty()) return flags.model_name;
  const auto path = std::filesystem::absolute(flags.load).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

/// Blocks for the keys and values of all texts.
plan::CachePool cache_pool(const ServeFlags& flags, const plan::ResolvedRun& run, std::int64_t context) {
  if (flags.cache_tokens > 0) return plan::cache_pool_of_tokens(run, flags.cache_tokens);
  if (!flags.cache_memory.empty()) {
    const plan::CachePool pool =
        plan::cache_pool_of_bytes(run, static_cast<std::int64_t>(bytes_of("--cache-memory", flags.cache_memory)));
    if (pool.blocks > 0) return pool;
    const auto one = static_cast<double>(plan::cache_pool_of_tokens(run, 1).bytes);
    throw ConfigError(rule_got_fix(concat("serve: --cache-memory must hold a block of ", plan::kCacheBlockTokens,
                                          " tokens, ", human_bytes(one), "."),
                                   flags.cache_memory, "--cache-memory 1GB"));
  }
  if (run.config.parallel.device == "cuda")
    throw ConfigError(
        rule_got_fix("serve: --device cuda needs --cache-memory: the default is a share of the host's memory.", "none",
                     "--cache-memory 8GB"));
  const plan::CachePool all = plan::cache_pool_of_tokens(run, flags.max_texts * context);
  const auto memory = machine_memory();
  if (!memory || all.bytes <= static_cast<std::int64_t>(memory->bytes / 4)) return all;
  const plan::CachePool share = plan::cache_pool_of_bytes(run, static_cast<std::int64_t>(memory->bytes / 4));
  return share.tokens() >= context ? share : plan::cache_pool_of_tokens(run, context);
}

/// Tokens of the longest text that blocks for `tokens` hold. Throws ConfigError where --max-context asks for more.
std::int64_t context_in(const Plan& plan, std::int64_t tokens) {
  if (plan.flags.max_context > 0 && tokens < plan.context)
    throw ConfigError(rule_got_fix("serve: the cache must hold one text of --max-context tokens.",
                                   concat(plan.context, ", and blocks for ", tokens),
                                   concat("--max-context ", tokens, ", or --cache-tokens ", plan.context)));
  return std::min(plan.context, tokens);
}

/// Keys and values of the texts, and whether they fit into memory.
void plan_cache(Plan& plan) {
  const plan::ResolvedRun& run = plan.model.run;
  plan.cache = cache_pool(plan.flags, run, plan.context);
  plan.positions = plan.context;          // no other cache changes a text
  context_in(plan, plan.cache.tokens());  // throws where a text of --max-context does not fit
  const std::int64_t logits = plan.flags.max_texts * generate::logits_bytes_of(run.shape);
  run::check_memory(plan.model, {.bytes = plan.cache.bytes + logits,
                                 .what = "keys and values of the texts under way",
                                 .fix = concat("--cache-tokens ", std::max<std::int64_t>(1, plan.cache.tokens() / 4))});
}

/// Has the model keep what --adapters names.
void plan_adapters(Plan& plan) {
  std::vector<std::string> folders;
  for (const NamedAdapter& adapter : adapters_of(plan.flags)) {
    if (adapter.name == name_of(plan.flags))
      throw ConfigError(rule_got_fix("serve: the model and each adapter must have a name of its own.",
                                     concat("'", adapter.name, "' twice"),
                                     concat("--model-name ", adapter.name, "-base")));
    plan.adapters.push_back(adapter.name);
    folders.push_back(adapter.folder);
  }
  run::keep_adapters(plan.model, folders, "serve");
}

Plan planned_encoder(const ServeFlags& flags, std::vector<std::string> tokens) {
  if (!flags.adapters.empty())
    throw ConfigError(
        rule_got_fix("serve: --adapters is for a model that writes texts.", "an encoder", "leave --adapters out"));
  if (flags.pp > 1)
    throw ConfigError(rule_got_fix("serve: an encoder is one stage.", concat("--pp ", flags.pp), "--pp 1"));
  const std::filesystem::path beside = interchange::companion_folder(flags.load);
  const auto pooling = interchange::read_pooling(beside.empty() ? std::filesystem::path(flags.load) : beside);
  Plan plan{.flags = flags,
            .model = run::open_trained_model(flags, "serve", recipe::Writes::Embeddings),
            .tokens = std::move(tokens),
            .pooling = pooling};
  plan.context = plan.model.run.shape.max_positions;
  for (const std::int64_t most : {pooling.max_tokens, flags.max_context})
    if (most > 0) plan.context = std::min(plan.context, most);
  plan.positions = plan.context;
  return plan;
}

Plan planned(const ServeFlags& flags) {
  auto tokens = tokens_of(flags);
  if (recipe::is_encoder(interchange::model_config_of(flags.load))) return planned_encoder(flags, std::move(tokens));
  Plan plan{.flags = flags, .model = run::open_trained_model(flags, "serve"), .tokens = std::move(tokens)};
  plan_adapters(plan);
  plan.chat = chat_of(flags);
  plan.context = plan.model.run.shape.max_positions;
  if (flags.max_context > 0) plan.context = std::min(plan.context, flags.max_context);
  plan_cache(plan);
  return plan;
}

/// The HTTP server of the first rank with the queue between it and the engine. Replies that are still held at the end
/// are given up before the server.
struct Front {
  serve::TaskQueue queue;
  serve::Metrics metrics;
  serve::Service service;
  serve::HttpServer server;

  /// `context`: of the longest text that ranks have agreed to have room for.
  Front(const Plan& plan, std::int64_t context);
  ~Front() {
    queue.stop();
    queue.clear();
  }
  Front(const Front&) = delete;
  Front& operator=(const Front&) = delete;
};

serve::ServiceOptions service_options(const Plan& plan, std::int64_t context) {
  // A request of more texts than one client may have waiting would never get in.
  serve::RequestLimits limits;
  limits.choices = std::min(limits.choices, plan.flags.max_queue / 2);
  return {
      .model = name_of(plan.flags),
      .adapters = plan.adapters,
      .context = context,
      .max_tokens = plan.flags.max_tokens,
      .vocab = plan.model.run.shape.vocab,
      .ends = plan.model.ends,
      .tokens = plan.tokens,
      .request_timeout_s = plan.flags.request_timeout_s,
      .created =
          std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count(),
      .embeddings = plan.pooling.has_value(),
      .prompt = plan.pooling ? plan.pooling->prompt : "",
      .lower_case = plan.pooling && plan.pooling->lower_case,
      .limits = limits,
      .pictures = plan.pooling ? std::vector<serve::Picture>{} : run_pictures(plan.flags.load)};
}

serve::ServerOptions server_options(const ServeFlags& flags) {
  serve::ServerOptions options;
  options.host = flags.host;
  options.port = flags.port;
  options.connections = static_cast<std::size_t>(flags.max_connections);
  options.body_bytes = static_cast<std::size_t>(flags.max_body_bytes);
  return options;
}

Front::Front(const Plan& plan, std::int64_t context)
    : queue({.texts = static_cast<std::size_t>(plan.flags.max_queue),
             .texts_of_client = static_cast<std::size_t>(plan.flags.max_queue / 2)}),
      service(service_options(plan, context), plan.model.tokenizer, plan.chat, queue, metrics),
      server(server_options(plan.flags), [this](serve::HttpRequest request, std::shared_ptr<serve::Reply> reply) {
        metrics.set("megatron_connections", static_cast<double>(server.connections()));
        service.handle(request, reply);
      }) {}

/// Listens, and calls work(front), which takes tasks from the queue until that is stopped.
template <class Work>
void answer_requests(const Plan& plan, std::int64_t context, const Work& work) {
  Front front(plan, context);
  const bool six = plan.flags.host.find(':') != std::string::npos;
  print("{} is served at http://{}{}{}:{}\n", name_of(plan.flags), six ? "[" : "", plan.flags.host, six ? "]" : "",
        front.server.port());
  std::fflush(stdout);
  std::jthread watcher([&](const std::stop_token& ended) {
    constexpr std::chrono::milliseconds kBetween(50);
    while (!ended.stop_requested() && !run::stop_requested()) std::this_thread::sleep_for(kBetween);
    front.server.close();
    front.queue.stop();
  });
  work(front);
  front.server.drain(std::chrono::seconds(2));
}

void serve_texts(const Plan& plan, generate::RankSlots& slots, std::int64_t context) {
  answer_requests(plan, context, [&](Front& front) {
    generate::Engine engine(slots, front.queue, front.metrics,
                            {.slots = plan.flags.max_texts,
                             .read_tokens = plan.flags.prefill_tokens,
                             .keep_prefixes = plan.flags.prefix_cache,
                             .drain_s = plan.flags.drain_s});
    engine.run();
    slots.stop();
  });
}

void serve_embeddings(const Plan& plan, const run::RankModel& rank, const comm::Group& world, at::Device device) {
  const model::ScoringGpt model(rank.options, rank.part, rank.parameters, rank.context.tensor());
  const generate::Embedder embedder(model, world, device, *plan.pooling);
  if (world.rank() != 0) return embedder.follow();
  answer_requests(plan, plan.context, [&](Front& front) { embedder.run(front.queue, front.metrics); });
}

int run_serve(const Args& args) {
  ServeFlags flags = serve_flags(args);
  const Plan plan = planned(flags);
  kernels::install_caching_allocator();
  const auto place = comm::place_from(comm::process_environment());
  const bool meets = place && place->world_size > 1;  // while a rank waits for others a signal ends it
  if (!meets) run::stop_on_signals();
  return run::run_on_ranks(
      plan.model.run, place,
      [&](const comm::Group& world, at::Device device) {
        if (meets) run::stop_on_signals();
        const run::RankModel rank = run::load_rank(plan.model, world, device, plan.positions);
        if (plan.pooling) {
          serve_embeddings(plan, rank, world, device);
          return kDone;
        }
        const generate::StagedModel model(
            model::CachedGpt(rank.options, rank.part, rank.parameters, rank.context.tensor()), rank.context.pipeline(),
            rank.tensor());
        generate::RankSlots slots(model, world, device, plan.cache.blocks);
        const std::int64_t context = context_in(plan, slots.tokens());  // on every rank alike
        if (world.rank() == 0)
          serve_texts(plan, slots, context);
        else
          slots.follow();
        return kDone;
      },
      run::model_facts(plan.model, config::fields_of(flags)));
}

}  // namespace

int serve(const Args& args) {
  return run::run_job_of_ranks([&] { return run_serve(args); });
}

}  // namespace megatron::app
