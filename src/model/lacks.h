// model/lacks.h - what a model needs that an executor does not compute.
//
// Executors ask before they load, so that a walker never meets a spec that it cannot compute. A new
// operation (model/layer_spec.h) that one of them lacks is a line in lacks.cc.
#pragma once

#include "model/executor.h"
#include "model/weights_source.h"

namespace quire {

// Unsupported: names the first layer, and what it needs.
Status check_layers(const ModelSource& source, DeviceKind device);

}  // namespace quire
