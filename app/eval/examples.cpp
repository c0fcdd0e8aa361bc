#include <cmath>
#include <span>

#include "app/eval/jobs.h"
#include "megatron/base/error.h"
#include "megatron/config/options.h"
#include "megatron/tasks/eval_texts.h"
#include "megatron/tasks/published/choice.h"
#include "megatron/tasks/published/lambada.h"

// `megatron eval lambada` and `choice`: texts of which an ending is scored.
namespace megatron::app {
namespace {

/// A finished list of texts as work for the model that they were encoded for.
EvalWork work_of(run::TrainedModel model, const tasks::EvalTexts& texts, const char* unit, bool likeliest) {
  return {
      .model = std::move(model), .ids = texts.ids(), .windows = texts.windows(), .unit = unit, .likeliest = likeliest};
}

}  // namespace

int eval_lambada(const Args& args) {
  const LambadaFlags flags = eval_lambada_flags(args);
  const auto format = tasks::lambada_format_of(flags.format);
  run::TrainedModel model = opened(flags);
  tasks::EvalTexts texts(model.tokenizer.encoder(), longest_window(model));
  for (const auto& passage : tasks::read_lambada(flags.data, format, flags.limit))
    texts.add(passage.context, passage.last_word);
  EvalWork work = work_of(std::move(model), texts, "passages", true);
  return run_eval(flags, work, [&](const std::vector<tasks::WindowScore>& scores) {
    const auto loss = tasks::loss_estimate(work.windows, scores);
    std::int64_t right = 0;
    for (const auto& score : scores) right += score.right ? 1 : 0;
    const auto examples = static_cast<double>(scores.size());
    const double accuracy = static_cast<double>(right) / examples;
    return nlohmann::ordered_json{{"examples", scores.size()},
                                  {"right", right},
                                  {"accuracy", accuracy},
                                  {"standard_error", tasks::standard_error_of_share(accuracy, scores.size())},
                                  {"perplexity", std::exp(loss.nll / examples)},
                                  {"token_perplexity", std::exp(loss.mean)},
                                  {"nll_sum", loss.nll},
                                  {"scored_tokens", loss.scored_tokens},
                                  {"shortened", texts.shortened()}};
  });
}

namespace {

/// How many questions are answered rightly.
std::int64_t right_answers(const std::vector<tasks::ChoiceQuestion>& questions,
                           std::span<const tasks::AnswerScore> answers, tasks::Normalization normalization) {
  std::int64_t right = 0;
  for (const auto& question : questions) {
    const auto chosen = tasks::likeliest_answer(answers.first(question.choices.size()), normalization);
    right += static_cast<std::int64_t>(chosen) == question.label ? 1 : 0;
    answers = answers.subspan(question.choices.size());
  }
  return right;
}

}  // namespace

int eval_choice(const Args& args) {
  const EvalFlags flags = eval_choice_flags(args);
  run::TrainedModel model = opened(flags);
  const auto questions = tasks::read_choices(flags.data, flags.limit);
  tasks::EvalTexts texts(model.tokenizer.encoder(), longest_window(model));
  std::vector<tasks::AnswerScore> answers;
  for (const auto& question : questions)
    for (const std::string& choice : question.choices) {
      const auto [context, answer] = tasks::continuation(question.context, choice);
      texts.add(context, answer);
      answers.push_back({.tokens = texts.windows().back().scored(), .bytes = static_cast<std::int64_t>(choice.size())});
    }
  EvalWork work = work_of(std::move(model), texts, "answers", false);
  return run_eval(flags, work, [&](const std::vector<tasks::WindowScore>& scores) {
    for (std::size_t i = 0; i < answers.size(); ++i) answers[i].nll = scores[i].nll;
    const auto examples = static_cast<double>(questions.size());
    const auto right = [&](tasks::Normalization n) { return right_answers(questions, answers, n); };
    const std::int64_t by_token = right(tasks::Normalization::Token);
    const double accuracy = static_cast<double>(by_token) / examples;
    return nlohmann::ordered_json{{"examples", questions.size()},
                                  {"right", by_token},
                                  {"accuracy", accuracy},
                                  {"standard_error", tasks::standard_error_of_share(accuracy, questions.size())},
                                  {"accuracy_bytes", static_cast<double>(right(tasks::Normalization::Byte)) / examples},
                                  {"accuracy_sum", static_cast<double>(right(tasks::Normalization::Sum)) / examples},
                                  {"answers", answers.size()},
                                  {"shortened", texts.shortened()}};
  });
}

}  // namespace megatron::app
