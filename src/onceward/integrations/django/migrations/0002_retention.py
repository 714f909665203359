"""As `stores/sql/migrations` says."""

from onceward.integrations.django.tables import numbered

Migration = numbered(__name__)
