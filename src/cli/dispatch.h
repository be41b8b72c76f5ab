// cli/dispatch.h - from the words of a command line to the command that they name.
//
//   return dispatch(argc, argv);      // main() is nothing else
//
// A command may be two words ("kv formats"); the first alone lists what there is. Words that name
// nothing are an error with what was probably meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quire::cli {

int dispatch(int argc, char** argv);

// What may stand first ("serve", "kv"), and what may follow such a word ("formats", "methods").
std::vector<std::string> first_words();
std::vector<std::string> second_words(std::string_view first);

}  // namespace quire::cli
