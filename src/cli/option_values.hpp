#pragma once
/// Values of options: what may be typed, what is near to what was typed, and what it means.

#include <string>
#include <utility>
#include <vector>

#include "cli/command_table.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt::cli {

/// Returns what is wrong with a number of 64 bits, or nothing: CLI11 itself takes -1 for 2^64 - 1.
std::string u64_fault(const std::string& text);
/// "5%" or "0.1%"; the sign may be left out of numbers that nobody takes for a share. Throws Usage.
double parse_percent(const std::string& text);
/// "2/8". Throws Usage.
std::pair<i64, i64> parse_part(const std::string& text);

/// "; did you mean X?", or nothing where nothing is near.
std::string suggestion(const std::string& typed, const std::vector<std::string>& known);

extern const std::vector<ValueWord> kGluWords;
extern const std::vector<ValueWord> kExpertsWords;
/// Too many for help.
const std::vector<ValueWord>& naming_words();
std::vector<ValueWord> target_words();
/// Words that only completions offer.
std::vector<ValueWord> hidden(std::vector<ValueWord> words);
std::vector<std::string> plain(const std::vector<ValueWord>& words);

/// Returns what is wrong with a value that must be one of those, an order of gate and up, or a target; or nothing.
std::string unknown_value(const std::string& typed, const std::vector<std::string>& known);
std::string glu_fault(const std::string& typed);
std::string target_fault(const std::string& typed);

}  // namespace glu_ckpt::cli
