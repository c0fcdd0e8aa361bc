#include "megatron/schedule/svg.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"

namespace megatron::schedule::svg {

std::string px(double value) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), "%.2f", value);
  std::string result = text.data();
  result.erase(result.find_last_not_of('0') + 1);
  if (result.back() == '.') result.pop_back();
  return result == "-0" ? "0" : result;
}

std::string escaped(const std::string& text) {
  using nlohmann::json;
  const std::string valid = json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace));
  std::string out;
  for (const char c : valid) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else
      out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  }
  return out;
}

std::string hex(const Rgb& rgb) {
  std::array<char, 16> text;
  std::snprintf(text.data(), text.size(), "#%02x%02x%02x", rgb[0], rgb[1], rgb[2]);
  return text.data();
}

std::string text_at(double x, double y, const std::string& classes, const std::string& text) {
  return "<text x=\"" + px(x) + "\" y=\"" + px(y) + "\"" + (classes.empty() ? "" : " class=\"" + classes + "\"") + ">" +
         escaped(text) + "</text>\n";
}

std::string box(double x, double y, double width, double height, const std::string& classes) {
  return "<rect class=\"" + classes + "\" x=\"" + px(x) + "\" y=\"" + px(y) + "\" width=\"" + px(width) +
         "\" height=\"" + px(height) + "\"";
}

std::string document(double width, double height, const std::string& definitions, const std::string& title,
                     double title_x, const std::string& body) {
  return concat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", px(width), "\" height=\"", px(height),
                "\" viewBox=\"0 0 ", px(width), " ", px(height), "\">\n", definitions, "<rect class=\"d\" width=\"",
                px(width), "\" height=\"", px(height), "\"/>\n", text_at(title_x, 24, "h", title), body, "</svg>\n");
}

}  // namespace megatron::schedule::svg
