#pragma once
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "megatron/config/meaning.h"

// The machinery over `visit`: command line, TOML, --help and docs/config.md of any struct whose options are declared as
// in run_config.h. A job of the command line declares its own options the same way:
//
//   struct TrainTokenizer {
//     std::vector<std::string> input;
//     int vocab_size = 0;
//     void visit(auto& v) {
//       v("input", input, "Text files.");                                     // --input a.txt b.txt
//       v.title("what is learned");                                           // of a long list in --help
//       v("vocab_size", vocab_size, "Tokens to learn.", "num-tokens");        // --vocab-size 4096, --num-tokens=4096
//     }
//   };
//
//   int train_tokenizer(const Args& args) {
//     TrainTokenizer options;
//     const std::vector<std::string> rest =
//         config::parse_command_line(options, args, "megatron tokenizer train --input F… --vocab-size N --output DIR");
//
// and a job that takes a recipe:
//
//     config::RunConfig run;
//     const config::RecipeCommand command =
//         config::parse_recipe_command(run, args, "megatron train RECIPE.toml [OPTION]…");
namespace megatron::config {

/// Where the value of an option lies: the types an option can have.
using FieldValue = std::variant<bool*, int*, std::int64_t*, std::uint64_t*, double*, std::string*,
                                std::vector<std::string>*, std::vector<std::int64_t>*, std::vector<double>*>;

/// One option of a struct.
struct Field {
  std::string path;  ///< "parallel.tp"; the name alone where the struct has no sections
  std::string help;
  std::vector<std::string> aliases;  ///< flags it also answers to, without "--"
  FieldValue value;
  std::string title = {};    ///< what it stands under in --help, where the struct has no sections
  std::string example = {};  ///< a value that is accepted, where the default is none: see Example
  Meaning meaning = {};
};

/// Among the aliases of an option that must be given: what an error says of a value that it cannot take. The default of
/// such an option means that it is absent.
struct Example {
  std::string text;
};

/// A struct's options in the order of declaration, its sections flattened. The pointers are into the struct.
struct Fields {
  struct Section {
    std::string name, help;
  };
  std::vector<Field> fields;
  std::vector<Section> sections;
};

/// What a declaration says of an option beyond its help: an alias, or one of Example and what Meaning::add() takes.
/// Holds a reference. One type for all of them: a job's hundreds of declarations compile to calls of two functions.
class Remark {
 public:
  Remark(std::string_view alias) : what_(alias.data()), size_(alias.size()) {}
  template <class T>
  requires(!std::is_convertible_v<const T&, std::string_view>) Remark(const T& what)
      : what_(&what), apply_([](const void* stored, Field* field, Meaning& meaning) {
          if constexpr (std::is_same_v<T, Example>) {
            if (field != nullptr) field->example = static_cast<const Example*>(stored)->text;
          } else {
            meaning.add(*static_cast<const T*>(stored));
          }
        }) {}

  void add_to(Field& field) const;
  void add_to(Meaning& section) const;

 private:
  const void* what_;
  std::size_t size_ = 0;
  void (*apply_)(const void*, Field*, Meaning&) = nullptr;  ///< null: an alias
};

/// The visitor that collects Fields.
class FieldCollector {
 public:
  template <class T, class... More>
  void operator()(std::string_view name, T& member, std::string_view help, const More&... more) {
    if constexpr (requires(FieldCollector & v) { member.visit(v); }) {
      Outer outer = enter(name, help, {Remark(more)...});
      member.visit(*this);
      leave(std::move(outer));
    } else {
      add(name, help, &member, {Remark(more)...});
    }
  }
  /// The options that are declared next stand under `text` in --help.
  void title(std::string_view text) { title_ = text; }
  Fields take() { return std::move(result_); }

 private:
  using Remarks = std::initializer_list<Remark>;
  struct Outer {
    std::string prefix;
    Meaning section;
  };

  void add(std::string_view name, std::string_view help, FieldValue value, Remarks remarks);
  Outer enter(std::string_view name, std::string_view help, Remarks remarks);
  void leave(Outer outer);

  Fields result_;
  std::string prefix_, title_ = "options";
  Meaning section_;
};

template <class Options>
Fields fields_of(Options& options) {
  FieldCollector collector;
  options.visit(collector);
  return collector.take();
}

/// Thrown by parse_command_line where the words hold --help or -h. The caller prints what() on stdout and exits with 0.
struct HelpRequested : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The parts that need no template. Errors are ConfigError and name every wrong word together; where nothing else is
// said, nothing is assigned unless all words are right.

/// Sets fields from command-line words and returns the positional words. An option is `--path value`, `--path=value`
/// or one of its aliases; '_' and '-' in names are the same. A boolean is `--flag`, `--no-flag` or `--flag true|false`.
/// A list takes the words up to the next option (numbers also joined by commas); repeating its option appends. A word
/// that begins with "--" is an option, not a value (write --path=--value), and all words after a bare "--" are
/// positional. The word after --help is help_text's topic. A value that is none of its option's Choices is an error;
/// those of sections are checked by plan::resolve, whether they come from words, a file or a program.
/// @param usage first lines of the help text
std::vector<std::string> parse_words(const Fields& fields, const std::vector<std::string>& words,
                                     const std::string& usage);

/// Sets fields from TOML text. Unknown keys and wrong types are reported together with their line numbers.
/// @param name what messages call the text: its file name
void read_toml(const Fields& fields, std::string_view text, const std::string& name);

/// read_toml() from a file of at most 1 MiB.
void read_toml_file(const Fields& fields, const std::string& path);

/// Sets what is right and returns what is wrong with the other keys, "" where nothing is. Throws ConfigError where the
/// file is no TOML.
std::string set_from_toml_file(const Fields& fields, const std::string& path);

/// Every option as TOML: read_toml gives back exactly these values. Throws ConfigError where a string is not UTF-8,
/// which TOML cannot hold.
std::string to_toml(const Fields& fields);

/// Options by section with types, choices and defaults (the present values), for a terminal.
/// @param usage the job's command line, and after an empty line what it does
/// @param topic "": required and common options where any is marked common, else all; "all": all; a section: its
///   options. Throws ConfigError for another.
std::string help_text(const Fields& fields, const std::string& usage, const std::string& topic = "");

/// Options by section as Markdown tables: docs/config.md.
std::string to_markdown(const Fields& fields);

/// A command that takes a recipe.
struct RecipeCommand {
  std::string recipe;  ///< the file's path
  /// By its path, how each option is called that words name (as they do) or the recipe sets to another value (its
  /// path). Without switches that are told to stay off.
  std::map<std::string, std::string> given;
};

/// For jobs that take one recipe: sets `recipe`, some or all of `fields`, from the TOML file that the only positional
/// word names, then `fields` from the other words. Wrong words, wrong keys and what `check` says of the values (also
/// where some are wrong, unless the recipe cannot be read) are reported together; known flags of Megatron-LM that are
/// no option here are answered with what to write instead.
RecipeCommand parse_recipe_words(const Fields& fields, const Fields& recipe, const std::vector<std::string>& words,
                                 const std::string& usage, const std::function<void()>& check);

/// Sets `options` from command-line words; see parse_words.
template <class Options>
std::vector<std::string> parse_command_line(Options& options, const std::vector<std::string>& words,
                                            const std::string& usage = "") {
  return parse_words(fields_of(options), words, usage);
}

/// Sets `options` from a recipe and command-line words; see parse_recipe_words.
template <class Options>
RecipeCommand parse_recipe_command(Options& options, const std::vector<std::string>& words, const std::string& usage,
                                   const std::function<void()>& check = {}) {
  return parse_recipe_words(fields_of(options), fields_of(options), words, usage, check);
}

/// parse_recipe_command() for a job with options of its own besides the recipe's: only `options.*recipe` is read from
/// the file.
///   parse_recipe_command(options, &PlanOptions::run, args, usage)
template <class Options, class Recipe>
RecipeCommand parse_recipe_command(Options& options, Recipe Options::*recipe, const std::vector<std::string>& words,
                                   const std::string& usage, const std::function<void()>& check = {}) {
  return parse_recipe_words(fields_of(options), fields_of(options.*recipe), words, usage, check);
}

template <class Options>
void load_toml(Options& options, const std::string& path) {
  read_toml_file(fields_of(options), path);
}

/// The TOML of `options`; see to_toml.
template <class Options>
std::string save_toml(Options options) {
  return to_toml(fields_of(options));
}

}  // namespace megatron::config
