"""The browser that pages are checked in; whoever imports this without one is skipped."""
import shutil
import sys

SKIPPED = 77
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "has_touch": True, "is_mobile": True}


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


try:
    from playwright.sync_api import sync_playwright
except ImportError:
    skip("the Python package playwright is not installed")
CHROMIUM = shutil.which("chromium") or skip("chromium is not installed (scripts/setup --test)")
