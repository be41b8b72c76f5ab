// engine/programs.h - the programs that a request asks for: the list of all there are.
#pragma once

#include "engine/program.h"
#include "engine/request.h"

namespace quire {

class Runtime;

ProgramList make_programs(Runtime& runtime, const Request& request, RootId root);

}  // namespace quire
