#pragma once
// The machinery over `visit`: see run_config.h for how options are declared. A job of the command line declares its own
// options the same way: a struct with a visit(), whose field names may use '_' or '-' on the command line.
//
//   struct TrainTokenizer { std::vector<std::string> input; int vocab_size = 0; void visit(auto& v) {
//     v("input", input, "Text files."); v("vocab_size", vocab_size, "Tokens to learn."); } };
//   TrainTokenizer options;
//   const auto rest = config::parse_command_line(options, args);   // --input a b --vocab-size 4096, --vocab-size=4096
//
// Field types: bool, int, std::int64_t, std::uint64_t, double, std::string, std::vector<std::string>, std::vector<std::int64_t>.
