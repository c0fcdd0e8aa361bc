#pragma once
#include <algorithm>
#include <array>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

// Where the texts of a picture are, by the widths of DejaVu Sans, which is wide among sans-serif fonts.
namespace megatron::testing {

struct SvgText {
  std::string text;
  double left, top, right, bottom;
};

/// Advance widths of the characters from ' ' to '~', thousandths of the font's size, as DejaVu's files have them.
inline double dejavu_width(unsigned char c, bool bold) {
  static constexpr std::array<int, 95> kPlain = {
      318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361,  318, 337, 636, 636, 636,
      636, 636, 636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632,
      575, 775, 752, 295, 295, 656, 557, 863, 748, 787, 603, 787, 695, 635,  611, 732, 684, 989, 685,
      611, 685, 390, 337, 390, 838, 500, 500, 613, 635, 550, 635, 615, 352,  635, 634, 278, 278, 579,
      278, 974, 634, 612, 635, 635, 411, 521, 392, 634, 592, 818, 592, 592,  525, 636, 337, 636, 838};
  static constexpr std::array<int, 95> kBold = {
      348, 456,  521, 838, 696, 1002, 872, 306, 457, 457, 523, 838, 380, 415,  380, 365, 696, 696,  696,
      696, 696,  696, 696, 696, 696,  696, 400, 400, 838, 838, 838, 580, 1000, 774, 762, 734, 830,  683,
      683, 821,  837, 372, 372, 775,  637, 995, 837, 850, 733, 850, 770, 720,  682, 812, 774, 1103, 771,
      724, 725,  457, 365, 457, 838,  500, 500, 675, 716, 593, 716, 678, 435,  716, 712, 343, 343,  665,
      343, 1042, 712, 687, 716, 716,  493, 595, 478, 712, 652, 924, 645, 652,  582, 712, 365, 712,  838};
  if ((c & 0xc0) == 0x80) return 0;  // follows the first byte of a character, which counts as wide
  if (c < ' ' || c > '~') return 1;
  return (bold ? kBold : kPlain)[static_cast<std::size_t>(c - ' ')] / 1000.0;
}

/// The declarations of each class in <style>, "text" being those of all texts.
inline std::map<std::string, std::string> svg_styles(const std::string& svg) {
  static const std::regex rule(R"re((?:^|[}>\n])\s*\.?(\w+)\{([^}]*)\})re");
  std::map<std::string, std::string> styles;
  const std::size_t begin = svg.find("<style>"), end = svg.find("</style>");
  if (begin == std::string::npos) return styles;
  std::string text = svg.substr(begin + 6, end - begin - 6);
  // Rules follow one another: each match must leave the closing brace for the next.
  std::string spaced;
  for (const char c : text) spaced += c == '}' ? std::string("}\n\n") : std::string(1, c);
  for (std::sregex_iterator i(spaced.begin(), spaced.end(), rule), last; i != last; ++i) styles[(*i)[1]] += (*i)[2];
  return styles;
}

inline std::vector<SvgText> svg_texts(const std::string& svg) {
  static const std::regex text(R"re(<text x="([-\d.]+)" y="([-\d.]+)"(?: class="([^"]*)")?>([^<]*)</text>)re");
  static const std::regex size(R"re((\d+)px)re");
  auto styles = svg_styles(svg);
  std::vector<SvgText> all;
  for (auto at = svg.find("<text "); at != std::string::npos; at = svg.find("<text ", at + 1)) {
    std::smatch parts;
    const std::string element = svg.substr(at, svg.find("</text>", at) + 7 - at);
    if (!std::regex_match(element, parts, text)) throw std::logic_error("no text element: " + element);
    std::string declarations = styles["text"];
    std::istringstream classes(parts[3]);
    for (std::string name; classes >> name;) declarations += ";" + styles[name];
    double pixels = 0;
    for (std::sregex_iterator s(declarations.begin(), declarations.end(), size), last; s != last; ++s)
      pixels = std::stod((*s)[1]);  // the last rule holds
    const bool bold = declarations.find("font-weight:bold") != std::string::npos;
    std::string words = parts[4];
    for (const auto& [entity, sign] : {std::pair{"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}})
      for (auto found = words.find(entity); found != std::string::npos; found = words.find(entity, found + 1))
        words.replace(found, std::string(entity).size(), sign);
    double width = 0;
    for (const char c : words) width += pixels * dejavu_width(static_cast<unsigned char>(c), bold);
    const double x = std::stod(parts[1]), y = std::stod(parts[2]);
    const bool middle = declarations.find("text-anchor:middle") != std::string::npos;
    const bool end = declarations.find("text-anchor:end") != std::string::npos;
    const double left = middle ? x - width / 2 : end ? x - width : x;
    all.push_back({words, left, y - 0.76 * pixels, left + width, y + 0.24 * pixels});
  }
  return all;
}

/// What is wrong with the texts of a picture: those that overlap by more than half a pixel, and those that leave it.
/// Pictures without text have a fault too.
inline std::string text_faults(const std::string& svg) {
  std::smatch box;
  if (!std::regex_search(svg, box, std::regex(R"re(viewBox="0 0 ([\d.]+) ([\d.]+)")re"))) return "no viewBox";
  const double width = std::stod(box[1]), height = std::stod(box[2]);
  std::vector<SvgText> texts = svg_texts(svg);
  if (texts.empty()) return "no texts";
  std::sort(texts.begin(), texts.end(), [](const SvgText& a, const SvgText& b) { return a.top < b.top; });
  std::ostringstream faults;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const SvgText& a = texts[i];
    if (a.left < 0 || a.top < 0 || a.right > width || a.bottom > height)
      faults << "cut: '" << a.text << "' from " << a.left << ", " << a.top << " to " << a.right << ", " << a.bottom
             << " of " << width << " x " << height << "\n";
    for (std::size_t k = i + 1; k < texts.size() && texts[k].top < a.bottom - 0.5; ++k)
      if (std::min(a.right, texts[k].right) - std::max(a.left, texts[k].left) > 0.5)
        faults << "overlap: '" << a.text << "' and '" << texts[k].text << "' at " << texts[k].left << ", "
               << texts[k].top << "\n";
  }
  return faults.str();
}

}  // namespace megatron::testing
