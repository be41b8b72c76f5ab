#include "kernels/cpu/mass_impl.h"

namespace quire {

extern const MassKernels kMassAvx2 = {mass_scores, mass_fold, mass_moments, mass_quadratic};

}  // namespace quire
