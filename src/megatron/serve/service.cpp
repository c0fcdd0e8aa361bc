#include "megatron/serve/service.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <random>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/philox.h"
#include "megatron/base/stack_frames.h"
#include "megatron/base/text/format.h"
#include "megatron/serve/api/api_error.h"
#include "megatron/serve/embedding_response.h"
#include "megatron/serve/error_response.h"
#include "megatron/serve/grammar/grammar_mask.h"
#include "megatron/serve/grammar/json_schema.h"
#include "megatron/serve/grammar/tool_grammar.h"
#include "megatron/serve/page.h"
#include "megatron/serve/text_response.h"
#include "megatron/text/normalize/normalize.h"
#include "megatron/text/texts.h"

namespace megatron::serve {
namespace {

const std::map<std::string, std::string>& methods_of_paths() {
  static const std::map<std::string, std::string> methods = {{"/", "GET"},
                                                             {"/health", "GET"},
                                                             {"/metrics", "GET"},
                                                             {"/run", "GET"},
                                                             {"/v1/models", "GET"},
                                                             {"/v1/completions", "POST"},
                                                             {"/v1/chat/completions", "POST"},
                                                             {"/v1/embeddings", "POST"}};
  return methods;
}

constexpr std::int64_t kEmbeddingsAtOnce = 32;  // texts of one request that wait
constexpr const char *kModelPath = "/v1/models/", *kRunPath = "/run/";

/// As metrics name it: what clients make up is not remembered.
std::string family_of(const std::string& path) {
  if (path.starts_with(kModelPath)) return "/v1/models";
  if (path.starts_with(kRunPath)) return "/run";
  return methods_of_paths().contains(path) ? path : "other";
}

}  // namespace

Service::Service(ServiceOptions options, const text::Tokenizer& tokenizer, std::optional<text::ChatTemplate> chat,
                 TaskQueue& queue, Metrics& metrics)
    : options_(std::move(options)),
      tokenizer_(tokenizer),
      chat_(std::move(chat)),
      syntax_(chat_ ? tool_syntax_of(*chat_) : nullptr),
      queue_(queue),
      metrics_(metrics),
      start_(stream_key(std::random_device()() ^ static_cast<std::uint64_t>(options_.created), "server")) {
  declare_metrics(metrics_);
}

void Service::handle(const HttpRequest& request, const std::shared_ptr<Reply>& reply) {
  const auto refuse = [&](const ApiError& error) {
    metrics_.add("megatron_requests_total", 1,
                 {{"path", family_of(request.path)}, {"status", std::to_string(error.status)}});
    HttpResponse response = error_response(error);
    if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
    if (error.status == 405) {
      const auto known = methods_of_paths().find(request.path);
      const bool posts = known != methods_of_paths().end() && known->second == "POST";
      response.headers.emplace_back("Allow", posts ? "POST" : "GET, HEAD");
    }
    reply->send(std::move(response));
  };
  try {
    const auto known = methods_of_paths().find(request.path);
    const bool is_read = request.path.starts_with(kModelPath) || picture_at(request.path) != nullptr;
    if (known == methods_of_paths().end() && !is_read)
      throw ApiError(404, "no such path: " + request.path.substr(0, 200), "", "not_found");
    const std::string method = is_read ? "GET" : known->second;
    if (request.method != method && !(method == "GET" && request.method == "HEAD"))
      throw ApiError(405, concat(request.path, " takes ", method), "", "method_not_allowed");
    route(request, reply, authorized_client(request));
  } catch (const ApiError& error) {
    refuse(error);
  } catch (const ConfigError& error) {
    refuse(ApiError(400, first_line_of(error.what())));
  } catch (const std::exception& error) {
    refuse(ApiError(500, error.what()));
  }
}

const Picture* Service::picture_at(const std::string& path) const {
  constexpr std::string_view kEnd = ".svg";
  if (!path.starts_with(kRunPath) || !path.ends_with(kEnd)) return nullptr;
  const std::size_t begin = std::string_view(kRunPath).size();
  const std::string name = path.substr(begin, path.size() - kEnd.size() - begin);
  const auto found = std::ranges::find(options_.pictures, name, &Picture::name);
  return found == options_.pictures.end() ? nullptr : &*found;
}

std::string Service::authorized_client(const HttpRequest& request) const {
  if (options_.tokens.empty() || request.path == "/" || request.path == "/health") return request.address;
  const std::string given = bearer_token(request);
  const int number = token_number(given, options_.tokens);
  if (number < 0)
    throw ApiError(401,
                   given.empty() ? "a bearer token must be given: Authorization: Bearer TOKEN"
                                 : "the bearer token is not one of this server's",
                   "", "invalid_api_key");
  return concat(number, " ", request.address);
}

void Service::route(const HttpRequest& request, const std::shared_ptr<Reply>& reply, const std::string& client) {
  if (request.method == "POST") {
    // A page of another site cannot send this type without asking first.
    if (media_type(request) != "application/json")
      throw ApiError(415, "the body must be application/json", "", "unsupported_media_type");
    const bool embeddings = request.path == "/v1/embeddings";
    if (embeddings != options_.embeddings)
      throw ApiError(400,
                     options_.embeddings ? "this model writes no texts: use /v1/embeddings"
                                         : "this model writes texts: embeddings are made by an encoder's folder",
                     "", "wrong_model");
    if (embeddings) return embed(parse_embedding(request.body, options_.limits), reply, client);
    Request asked = request.path == "/v1/completions" ? parse_completion(request.body, options_.limits)
                                                      : parse_chat(request.body, options_.limits);
    return answer(std::move(asked), reply, client);
  }
  if (request.path == "/" && options_.embeddings)
    throw ApiError(404, "there is no page for a model that writes no texts", "", "not_found");
  // What throws does so before the 200 is counted.
  const Picture* const shown = picture_at(request.path);
  const std::string picture = shown != nullptr ? shown->draw() : "";
  const std::int64_t adapter =
      request.path.starts_with(kModelPath) ? adapter_of(request.path.substr(std::string(kModelPath).size())) : 0;
  metrics_.add("megatron_requests_total", 1, {{"path", family_of(request.path)}, {"status", "200"}});
  if (request.path == "/")
    return reply->send({.type = "text/html; charset=utf-8", .body = std::string(page()), .headers = page_headers()});
  if (request.path == "/metrics")
    return reply->send({.type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics_.text()});
  if (request.path == "/health") return reply->send({.body = R"({"status":"ok"})"});
  if (request.path == "/run") {
    nlohmann::ordered_json names = nlohmann::ordered_json::array();
    for (const Picture& one : options_.pictures)
      if (!one.can_be_drawn || one.can_be_drawn()) names.push_back(one.name);
    return reply->send({.body = nlohmann::ordered_json{{"pictures", names}}.dump()});
  }
  if (shown != nullptr) return reply->send({.type = "image/svg+xml", .body = picture});
  const ModelsHead head{.created = options_.created, .context = options_.context};
  if (request.path != "/v1/models") return reply->send({.body = model_json(served(adapter), head)});
  std::vector<ServedModel> models;
  for (std::int64_t i = 0; i <= std::ssize(options_.adapters); ++i) models.push_back(served(i));
  reply->send({.body = models_json(models, head)});
}

ServedModel Service::served(std::int64_t adapter) const {
  if (adapter == 0) return {.name = options_.model};
  return {.name = options_.adapters.at(static_cast<std::size_t>(adapter - 1)), .parent = options_.model};
}

std::int64_t Service::adapter_of(const std::string& asked) const {
  if (asked.empty() || asked == options_.model) return 0;
  const auto found = std::ranges::find(options_.adapters, asked);
  if (found != options_.adapters.end()) return found - options_.adapters.begin() + 1;
  std::string names = concat("'", options_.model, "'");
  for (const std::string& name : options_.adapters) names += concat(", '", name, "'");
  throw ApiError(404, concat("the model '", asked.substr(0, 200), "' does not exist; this server has ", names), "model",
                 "model_not_found");
}

std::string Service::text_of_vector(const std::string& text) const {
  const std::string all = options_.prompt + text;
  return options_.lower_case ? text::to_lower_case(all) : all;
}

PromptTokens Service::tokens_of(const Prompt& prompt, const std::string& name, bool special) const {
  PromptTokens made;
  std::vector<std::int64_t>& tokens = made.ids;
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    auto ids = options_.embeddings ? tokenizer_.encode(text_of_vector(*text), text::Specials::AsText)
                                   : tokenizer_.encode(*text, text::Specials::Recognised);
    if (special && options_.embeddings) {
      ids = tokenizer_.frame(ids).ids;
    } else if (special) {
      const auto opening = text::opening_of(tokenizer_, ids);
      made.opening = opening.size();
      ids.insert(ids.begin(), opening.begin(), opening.end());
    }
    tokens.assign(ids.begin(), ids.end());
  } else {
    tokens = std::get<std::vector<std::int64_t>>(prompt);
  }
  if (tokens.empty() && !options_.ends.empty()) {  // after the end of a text the next begins
    tokens = {options_.ends[0]};
    made.opening = 1;
  }
  if (tokens.empty()) throw ApiError(400, "a prompt must have at least one token", name, "invalid_value");
  for (const std::int64_t token : tokens)
    if (token >= options_.vocab)
      throw ApiError(400, concat("the model has no token ", token, ": its ids are 0 to ", options_.vocab - 1), name,
                     "invalid_value");
  return made;
}

std::int64_t Service::new_tokens(const Request& request, std::int64_t prompt_tokens) const {
  const std::int64_t left = options_.context - prompt_tokens;
  const std::int64_t most = options_.max_tokens > 0 ? std::min(left, options_.max_tokens) : left;
  const bool scores = request.max_tokens == 0;
  if (left < (scores ? 0 : 1))
    throw ApiError(400,
                   concat("this model's context has ", options_.context, " tokens, and the prompt ", prompt_tokens),
                   request.chat ? "messages" : "prompt", "context_length_exceeded");
  return std::min(most, request.max_tokens.value_or(most));
}

std::string Service::chat_prompt(const Request& request) const {
  if (!chat_)
    throw ApiError(400, "this model has no chat template: use /v1/completions", "messages", "no_chat_template");
  const bool asks = request.tools.choice != ToolChoice::None;
  const bool called = std::ranges::any_of(request.messages, [](const auto& one) { return !one.tool_calls.empty(); });
  if (asks && !chat_->mentions("tools"))
    throw ApiError(400,
                   "'tools' need a model whose chat template writes them, and this one's does not: leave them out, set "
                   "tool_choice to none, or serve another model",
                   "tools", "unsupported_parameter");
  if (asks && syntax_ == nullptr)
    throw ApiError(400,
                   concat("'tools' need a model whose chat template writes calls in a way that is known: ",
                          known_tool_syntaxes(), "; set tool_choice to none, or serve such a model"),
                   "tools", "unsupported_parameter");
  if (called && !chat_->mentions("tool_calls"))
    throw ApiError(400, "'tool_calls' in messages need a model whose chat template writes them: leave them out",
                   "messages", "unsupported_parameter");
  return chat_->prompt(request.messages, asks ? &request.tools.definitions : nullptr);
}

std::function<std::shared_ptr<TokenMask>()> Service::masks_of(const Request& request) {
  const bool calls = needs_tool_grammar(request.tools, request.schema.has_value());
  if (!calls && !request.schema) return nullptr;
  const std::string field = request.schema ? "response_format" : "tools";
  if (options_.ends.empty()) throw ApiError(400, concat("'", field, "' needs a model that has an end token"), field);
  std::call_once(trie_once_, [&] { trie_ = std::make_shared<const TokenTrie>(tokenizer_, options_.vocab); });
  const nlohmann::ordered_json* const schema = request.schema ? &*request.schema : nullptr;
  auto grammar = std::make_shared<const Grammar>(
      calls ? tool_grammar(*syntax_, request.tools, schema, *trie_, thinking_of(request)) : grammar_of_schema(*schema));
  return [grammar = std::move(grammar), this] { return std::make_shared<GrammarMask>(grammar, trie_, options_.ends); };
}

Thinking Service::thinking_of(const Request& request) const {
  const std::string* const prompt = request.prompts.empty() ? nullptr : std::get_if<std::string>(&request.prompts[0]);
  return chat_ && prompt != nullptr ? thinking_behind(*chat_, *prompt) : Thinking::None;
}

void Service::embed(const EmbeddingRequest& request, const std::shared_ptr<Reply>& reply, const std::string& client) {
  adapter_of(request.model);  // an encoder has none: throws for another model's name
  const auto response = std::make_shared<EmbeddingResponse>(options_.model, request.base64, reply, metrics_, queue_);
  std::vector<TextTask> tasks;
  TextTask task;
  task.client = client;
  task.arrived = Clock::now();
  task.deadline = task.arrived + std::chrono::duration_cast<Clock::duration>(
                                     std::chrono::duration<double>(options_.request_timeout_s));
  for (const Prompt& input : request.inputs) {
    task.prompt = tokens_of(input, "input", request.add_special_tokens).ids;
    if (std::ssize(task.prompt) > options_.context)
      throw ApiError(
          400, concat("this model reads ", options_.context, " tokens at most, and the text has ", task.prompt.size()),
          "input", "context_length_exceeded");
    tasks.push_back(task);
  }
  response->ask(std::move(tasks), static_cast<std::size_t>(std::min(kEmbeddingsAtOnce, options_.limits.choices)));
}

void Service::answer(Request request, const std::shared_ptr<Reply>& reply, const std::string& client) {
  const std::int64_t adapter = adapter_of(request.model);
  if (request.chat) request.prompts = {chat_prompt(request)};
  for (const auto& [token, bias] : request.sampling.logit_bias)
    if (token >= options_.vocab) throw ApiError(400, concat("the model has no token ", token), "logit_bias");
  const std::function<std::shared_ptr<TokenMask>()> mask = masks_of(request);
  std::optional<ToolParsing> tools;
  if (request.tools.choice != ToolChoice::None) {
    tools.emplace(ToolParsing{.syntax = syntax_, .one = !request.tools.parallel});
    for (const Tool& tool : request.tools.tools) tools->names.insert(tool.name);
  }
  const auto now = Clock::now();
  const std::uint64_t number = ++requests_;
  const auto response = std::make_shared<TextResponse>(
      TextResponseOptions{.head = {.id = fmt::format("{}-{:016x}", request.chat ? "chatcmpl" : "cmpl",
                                                     stream_key(start_ + number, "response")),
                                   .created = std::chrono::duration_cast<std::chrono::seconds>(
                                                  std::chrono::system_clock::now().time_since_epoch())
                                                  .count(),
                                   .model = served(adapter).name,
                                   .chat = request.chat,
                                   .tools = tools.has_value()},
                          .stream = request.stream,
                          .include_usage = request.include_usage,
                          .echo = request.echo,
                          .logprobs = request.logprobs.has_value(),
                          .ends = options_.ends,
                          .stop = request.stop,
                          .tools = tools,
                          .call_key = stream_key(start_ + number, "calls")},
      tokenizer_, reply, metrics_);
  TextTask task{.prompt = {},
                .adapter = adapter,
                .ends = request.ignore_eos && !mask ? std::vector<std::int64_t>() : options_.ends,
                .sampling = request.sampling,
                .seed = request.sampling.seed.value_or(stream_key(start_ + number, "seed")),
                .logprobs = request.logprobs,
                .prompt_logprobs = request.echo && request.logprobs.has_value(),
                .mask = nullptr,
                .client = client,
                .listener = nullptr,
                .arrived = now,
                .deadline = now + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(options_.request_timeout_s))};
  std::vector<TextTask> tasks;
  std::map<std::vector<std::int64_t>, std::int64_t> copies;
  for (const Prompt& prompt : request.prompts) {
    const PromptTokens tokens = tokens_of(prompt, request.chat ? "messages" : "prompt", request.add_special_tokens);
    task.prompt = tokens.ids;
    task.max_tokens = new_tokens(request, std::ssize(task.prompt));
    for (std::int64_t i = 0; i < request.n; ++i) {
      task.copy = copies[task.prompt]++;
      task.mask = mask ? mask() : nullptr;
      task.listener = response->add_choice(tokens, i == 0);
      tasks.push_back(task);
    }
  }
  queue_.submit(std::move(tasks));
}

}  // namespace megatron::serve
